"""An agent that solves word problems with a calculator.

A plain Agent Lightning agent on the openai client: it knows nothing of slime or slime_agl, and runs unmodified
under Agent Lightning's own trainer.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from typing import Any, TypedDict

import agentlightning as agl
from openai import AsyncOpenAI

MAX_TURNS = 5

SYSTEM = "Solve the problem with the calculator. Then give the result in a line `Answer: NUMBER`."
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluate an expression of numbers, + - * / and parentheses.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Task(TypedDict):
    """question: the word problem; answer: the right number, as text."""

    question: str
    answer: str


@agl.rollout
async def calc_tool(task: Task, llm: agl.LLM) -> float:
    """Let the model calculate until it answers, in at most MAX_TURNS turns. Returns 1 for the right number, else 0."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task["question"]},
    ]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(model=llm.model, messages=messages, tools=TOOLS)
            message = completion.choices[0].message
            if not message.tool_calls:
                return float(answered(message.content or "") == float(task["answer"]))
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": use(call.function)})
    return 0.0


def use(function: Any) -> str:
    """Execute one tool call: returns the value, or what is wrong with the call."""
    if function.name != "calculator":
        return f"error: there is no tool {function.name}"
    try:
        return f"{calculate(json.loads(function.arguments)['expression']):.10g}"
    except (ArithmeticError, KeyError, SyntaxError, TypeError, ValueError) as error:
        return f"error: {error}"


def calculate(expression: str) -> float:
    """Evaluate an arithmetic expression.

    Raises:
        SyntaxError, ValueError: not an arithmetic expression. ArithmeticError: it has no value.
    """
    return _value(ast.parse(expression, mode="eval").body)


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(left), _value(right))
    raise ValueError(f"{ast.unparse(node)} is not numbers, + - * / and parentheses")


def answered(text: str) -> float | None:
    """Return the number after the last `Answer:`, or None."""
    found = re.findall(r"Answer:\s*(-?\d+(?:\.\d+)?)", text.replace(",", ""))
    return float(found[-1]) if found else None

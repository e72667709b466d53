"""An arithmetic agent that is told when it is wrong and may try again.

A plain Agent Lightning agent: it knows the OpenAI client and nothing of
slime or slime_agl, and runs unmodified under Agent Lightning's own trainer.
"""

from __future__ import annotations

import re
from typing import TypedDict

import agentlightning as agl
from openai import AsyncOpenAI

TRIES = 3
DISCOUNT = 0.5
MAX_TOKENS = 24

# The second sum demonstrates the feedback.
EXAMPLES = [
    {"role": "user", "content": "What is 2 + 1?"},
    {"role": "assistant", "content": "2 + 1 = 3"},
    {"role": "user", "content": "What is 9 - 5?"},
    {"role": "assistant", "content": "9 - 5 = 6"},
    {"role": "user", "content": "6 is too high. What is 9 - 5?"},
    {"role": "assistant", "content": "9 - 5 = 4"},
]


class Task(TypedDict):
    """question: the question; answer: the right integer, as text."""

    question: str
    answer: str


@agl.rollout
async def math_feedback(task: Task, llm: agl.LLM) -> float:
    """Ask until the answer is right, at most TRIES times.

    Returns the reward: 1 for a right first answer, halved per further try, 0 if none is right.
    """
    question, answer = task["question"], int(task["answer"])
    messages = [*EXAMPLES, {"role": "user", "content": question}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for attempt in range(TRIES):
            completion = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=MAX_TOKENS)
            reply = completion.choices[0].message.content or ""
            said = last_number(reply)
            if said == answer:
                return DISCOUNT**attempt
            messages.append({"role": "assistant", "content": reply})
            messages.append({"role": "user", "content": f"{feedback(said, answer)} {question}"})
    return 0.0


def last_number(text: str) -> float | None:
    """The last number in `text`, or None. In `9-5` the minus is an operator, not a sign."""
    numbers = re.findall(r"(?<!\d)-?\d+(?:\.\d+)?", text.replace(",", ""))
    return float(numbers[-1]) if numbers else None


def feedback(said: float | None, answer: int) -> str:
    """Return the reply to a wrong answer."""
    if said is None:
        return "I see no number."
    return f"{said:g} is too {'high' if said > answer else 'low'}."

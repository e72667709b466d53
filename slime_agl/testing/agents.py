"""Scripted agents, for tests of everything but the agent.

Each function makes an ordinary `@agl.rollout` agent that calls `llm.endpoint` with the OpenAI client. No argument is
required, so their import paths can be used in `agl.agent`.

    >>> fake.say("one").say("two")
    >>> output = run_rollout(chat_agent(turns=2), ["count to two"])
    >>> len(fake.requests)
    2
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionMessageToolCallUnion, ChatCompletionToolParam

from slime_agl.lightning import _agl  # isort: skip  # before agentlightning, to keep its import off the network
from agentlightning.litagent import rollout
from agentlightning.types import LLM

Agent = _agl.AnyAgent
Task = str | list | Mapping[str, Any]
"""A prompt, messages, or a mapping with `prompt`."""


def chat_agent(turns: int = 1, reward: float | None = 1.0) -> Agent:
    """Return an async agent that sends the task's prompt, then "Go on." until it has `turns` answers."""

    @rollout
    async def chat(task: Task, llm: LLM) -> float | None:
        messages = _messages(task)
        async with openai.AsyncOpenAI(**_access(llm)) as client:
            for _ in range(turns):
                answer = await client.chat.completions.create(model=llm.model, messages=messages)
                messages += [_echo(answer), {"role": "user", "content": "Go on."}]
        return reward

    return chat


def sync_agent(turns: int = 1, reward: float | None = 1.0) -> Agent:
    """Return `chat_agent` as a blocking function."""

    @rollout
    def chat(task: Task, llm: LLM) -> float | None:
        messages = _messages(task)
        with openai.OpenAI(**_access(llm)) as client:
            for _ in range(turns):
                answer = client.chat.completions.create(model=llm.model, messages=messages)
                messages += [_echo(answer), {"role": "user", "content": "Go on."}]
        return reward

    return chat


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tool_agent(
    functions: Mapping[str, Callable[..., object]] | None = None, *, max_turns: int = 8, reward: float | None = 1.0
) -> Agent:
    """Return an async agent that runs the model's calls until an answer has none.

    functions: the tools by name; `add(a, b)` by default. An exception becomes the call's result.
    """
    known = {"add": add} if functions is None else dict(functions)
    tools = [_tool(name, function) for name, function in known.items()]

    @rollout
    async def use_tools(task: Task, llm: LLM) -> float | None:
        messages = _messages(task)
        async with openai.AsyncOpenAI(**_access(llm)) as client:
            for _ in range(max_turns):
                answer = await client.chat.completions.create(model=llm.model, messages=messages, tools=tools)
                messages.append(_echo(answer))
                calls = answer.choices[0].message.tool_calls or []
                messages += [_result(call, known) for call in calls]
                if not calls:
                    break
        return reward

    return use_tools


def failing_agent(message: str = "the agent failed on purpose", *, after_turns: int = 0) -> Agent:
    """Return an async agent that raises RuntimeError(message) after `after_turns` answers."""

    @rollout
    async def fail(task: Task, llm: LLM) -> None:
        messages = _messages(task)
        async with openai.AsyncOpenAI(**_access(llm)) as client:
            for _ in range(after_turns):
                answer = await client.chat.completions.create(model=llm.model, messages=messages)
                messages += [_echo(answer), {"role": "user", "content": "Go on."}]
        raise RuntimeError(message)

    return fail


def _access(llm: LLM) -> dict[str, Any]:
    return {"base_url": llm.endpoint, "api_key": llm.api_key or "none", "max_retries": 0}


def _messages(task: Task) -> list:
    prompt = task if isinstance(task, (str, list)) else task["prompt"]
    return list(prompt) if isinstance(prompt, list) else [{"role": "user", "content": prompt}]


def _echo(answer: ChatCompletion) -> dict:
    return answer.choices[0].message.model_dump(exclude_none=True)


def _tool(name: str, function: Callable[..., object]) -> ChatCompletionToolParam:
    properties: dict[str, object] = {parameter: {} for parameter in inspect.signature(function).parameters}
    parameters: dict[str, object] = {"type": "object", "properties": properties}
    description = inspect.getdoc(function) or name
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _result(call: ChatCompletionMessageToolCallUnion, known: Mapping[str, Callable[..., object]]) -> dict:
    try:
        assert call.type == "function"
        value = known[call.function.name](**json.loads(call.function.arguments))
    except Exception as fault:  # a model may call anything with any arguments; it gets the error as the result
        value = f"{type(fault).__name__}: {fault}"
    return {"role": "tool", "tool_call_id": call.id, "content": str(value)}

"""Agents that do as they are told: what to hand to a rollout when the agent is not what is tested.

Each function here makes an ordinary `@agl.rollout` agent that talks to `llm.endpoint` with the OpenAI client. None of
them needs an argument, so their import paths can stand in `agl.agent` as they are.

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

from slime_agl.lightning import _agl  # isort: skip  # ahead of agentlightning, which it keeps off the network
from agentlightning.litagent import rollout

Agent = _agl.LitAgent[Any]


def chat_agent(turns: int = 1, reward: float | None = 1.0) -> Agent:
    """An async agent that asks the task's prompt, then says "Go on." until it has `turns` answers."""

    @rollout
    async def chat(task: Any, llm: Any) -> float | None:
        messages = _messages(task)
        async with openai.AsyncOpenAI(**_access(llm)) as client:
            for _ in range(turns):
                answer = await client.chat.completions.create(model=llm.model, messages=messages)
                messages += [_echo(answer), {"role": "user", "content": "Go on."}]
        return reward

    return chat


def sync_agent(turns: int = 1, reward: float | None = 1.0) -> Agent:
    """`chat_agent` as a blocking function."""

    @rollout
    def chat(task: Any, llm: Any) -> float | None:
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
    functions: Mapping[str, Callable[..., Any]] | None = None, *, max_turns: int = 8, reward: float | None = 1.0
) -> Agent:
    """An async agent that runs the calls it is answered with until an answer has none.

    functions: what can be called, by name; `add(a, b)` when not given. What a call raises is its result.
    """
    known = {"add": add} if functions is None else dict(functions)
    tools = [_tool(name, function) for name, function in known.items()]

    @rollout
    async def use_tools(task: Any, llm: Any) -> float | None:
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
    """An async agent that raises RuntimeError(message) after `after_turns` answers."""

    @rollout
    async def fail(task: Any, llm: Any) -> None:
        messages = _messages(task)
        async with openai.AsyncOpenAI(**_access(llm)) as client:
            for _ in range(after_turns):
                answer = await client.chat.completions.create(model=llm.model, messages=messages)
                messages += [_echo(answer), {"role": "user", "content": "Go on."}]
        raise RuntimeError(message)

    return fail


def _access(llm: Any) -> dict[str, Any]:
    return {"base_url": llm.endpoint, "api_key": llm.api_key or "none", "max_retries": 0}


def _messages(task: Any) -> list[Any]:
    prompt = task if isinstance(task, (str, list)) else task["prompt"]
    return list(prompt) if isinstance(prompt, list) else [{"role": "user", "content": prompt}]


def _echo(answer: Any) -> dict[str, Any]:
    return answer.choices[0].message.model_dump(exclude_none=True)


def _tool(name: str, function: Callable[..., Any]) -> Any:
    properties: dict[str, Any] = {parameter: {} for parameter in inspect.signature(function).parameters}
    described = {"name": name, "description": inspect.getdoc(function) or name}
    return {"type": "function", "function": {**described, "parameters": {"type": "object", "properties": properties}}}


def _result(call: Any, known: Mapping[str, Callable[..., Any]]) -> Any:
    try:
        value = known[call.function.name](**json.loads(call.function.arguments))
    except Exception as fault:  # a model may call anything with anything; it is told what came of it
        value = f"{type(fault).__name__}: {fault}"
    return {"role": "tool", "tool_call_id": call.id, "content": str(value)}

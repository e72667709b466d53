"""Agents for the tasks of `slime_agl.local.train.tasks`: several turns with credit for each, and a subagent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openai
from agentlightning.litagent import rollout
from agentlightning.types import LLM
from openai.types.chat import ChatCompletionMessage

from slime_agl.execution import Execution
from slime_agl.local.train.boxes import CODES, EMPTY
from slime_agl.testing.boxes import FOUND, MAX_TOKENS, TOOLS, opened_by

__all__ = ["copies", "errands", "right_turns"]

REPORTED = 0.5


@rollout
async def copies(task: Mapping[str, str], llm: LLM) -> float:
    """Say one code after the other to the model. Returns the share of them that it said again."""
    codes = task["prompt"].split()
    messages: list = []
    right = 0
    async with _client(llm) as client:
        for code in codes:
            messages.append({"role": "user", "content": code})
            completion = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=MAX_TOKENS)
            said = completion.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": said})
            right += said.strip() == code
    return right / len(codes)


def right_turns(execution: Execution) -> list[float]:
    """For `agl.credit.function`: 1 for each turn of `copies` that said its code again, else 0."""
    said = [message["content"] for message in execution.messages if message["role"] == "assistant"]
    codes = [message["content"] for message in execution.messages if message["role"] == "user"]
    answers = [*said, execution.final_text]
    return [float((answer or "").strip() == code) for answer, code in zip(answers, codes, strict=True)]


@rollout
async def errands(task: Mapping[str, str], llm: LLM) -> float:
    """A planner opens a box; its tool is a helper, another conversation with the model, that reports what lies in it.

    Returns the reward of the team: 0.2 if the planner opened the right box, 0.5 if the helper then reported its code, 1
    if the planner passed that on.
    """
    box, code = task["prompt"], task["label"]
    messages: list = [{"role": "user", "content": box}]
    async with _client(llm) as client:

        async def ask(name: str, asked: list, **more: Any) -> ChatCompletionMessage:
            completion = await client.chat.completions.create(model=name, messages=asked, max_tokens=MAX_TOKENS, **more)
            return completion.choices[0].message

        message = await ask("planner", messages, tools=TOOLS)
        if not message.tool_calls:
            return 0.0
        messages.append(message.model_dump(exclude_none=True))
        found = code if opened_by(message.tool_calls[0]) == box else EMPTY
        report = await ask("helper", [{"role": "user", "content": found}])
        reported = (report.content or "").strip()
        for call in message.tool_calls:
            shown = reported if reported in CODES else EMPTY
            messages.append({"role": "tool", "tool_call_id": call.id, "content": shown})
        answer = await ask("planner", messages, tools=TOOLS)
    if found != code:
        return 0.0
    if reported != code:
        return FOUND
    return 1.0 if (answer.content or "").strip() == code else REPORTED


def _client(llm: LLM) -> openai.AsyncOpenAI:
    # Without TLS: loading the certificates would take longer than the rest of an execution.
    http = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", http_client=http)

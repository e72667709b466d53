"""An agent that compares two numbers, then says in one sentence why. It gives no reward: a teacher trains it.

The teacher scores every token that the policy samples, over the whole conversation, as the policy sampled it. A plain
Agent Lightning agent on the openai client.
"""

from __future__ import annotations

from typing import Any, TypedDict

import agentlightning as agl
from openai import AsyncOpenAI

MAX_TOKENS = 40


class Task(TypedDict):
    """question: which of two numbers is larger; answer: the larger, for evaluations."""

    question: str
    answer: str


@agl.rollout
async def distillation(task: Task, llm: agl.LLM) -> None:
    """Ask, and ask back. Two turns of one conversation, so one Sample."""
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for more in ("Say in one sentence why.", None):
            completion = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=MAX_TOKENS)
            messages.append(completion.choices[0].message.model_dump(exclude_none=True))
            if more:
                messages.append({"role": "user", "content": more})


def is_right(task: Task, execution: Any) -> float:
    """For agl.reward: 1 if the first answer names the larger number. It is logged, and trains nothing."""
    first = execution.said[0].reply.get("content") or "" if execution.said else ""
    return float(task["answer"] in first)

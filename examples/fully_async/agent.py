"""An agent that keeps a running total: short for most rows, many turns long for a few.

Such a heavy tail is what asynchronous steps are for: while one agent is still adding, others begin the next batch and
the trainer trains. The agent itself does not know; it is a plain Agent Lightning agent on the openai client.
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

import agentlightning as agl
from openai import AsyncOpenAI

SYSTEM = "Keep a running total. Answer each number with a line `Total: NUMBER` and nothing else."


class Task(TypedDict):
    """numbers: what is to be added, separated by spaces; total: their sum, as text."""

    numbers: str
    total: str


@agl.rollout
async def fully_async(task: Task, llm: agl.LLM) -> float:
    """Tell one number a turn. Returns the part of the totals that were right."""
    numbers = [int(number) for number in task["numbers"].split()]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    right = 0
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for at, number in enumerate(numbers, 1):
            messages.append({"role": "user", "content": f"{number}"})
            completion = await client.chat.completions.create(model=llm.model, messages=messages)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            right += total_of(message.content or "") == sum(numbers[:at])
    return right / len(numbers)


def total_of(text: str) -> int | None:
    """The number after the last `Total:`, or None."""
    found = re.findall(r"Total:\s*(-?\d+)", text.replace(",", ""))
    return int(found[-1]) if found else None

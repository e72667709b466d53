"""An agent that keeps a running total: short for most rows, many turns long for a few.

Asynchronous steps suit such a heavy tail: while one agent is still adding, others start the next batch and the trainer
trains. The agent itself is unaware of it: a plain Agent Lightning agent on the openai client.
"""

from __future__ import annotations

import re
from typing import Any, TypedDict

import agentlightning as agl
from openai import AsyncOpenAI

SYSTEM = "Keep a running total. Answer each number with a line `Total: NUMBER` and nothing else."
MAX_TOKENS = 24

# Shows the answer's form, which small models do not take from the instruction.
EXAMPLES = [
    {"role": "user", "content": "Start at 20."},
    {"role": "assistant", "content": "Total: 20"},
    {"role": "user", "content": "Add 15."},
    {"role": "assistant", "content": "20 + 15 = 35. Total: 35"},
    {"role": "user", "content": "Start at 61."},
    {"role": "assistant", "content": "Total: 61"},
    {"role": "user", "content": "Add 7."},
    {"role": "assistant", "content": "61 + 7 = 68. Total: 68"},
]


class Task(TypedDict):
    """numbers: the numbers to add, separated by spaces; total: their sum, as text."""

    numbers: str
    total: str


@agl.rollout
async def fully_async(task: Task, llm: agl.LLM) -> float:
    """Send one number per turn. Returns the fraction of totals that were right."""
    numbers = [int(number) for number in task["numbers"].split()]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, *EXAMPLES]
    right = 0
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for at, number in enumerate(numbers, 1):
            messages.append({"role": "user", "content": f"Add {number}." if at > 1 else f"Start at {number}."})
            completion = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=MAX_TOKENS)
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            right += total_of(message.content or "") == sum(numbers[:at])
    return right / len(numbers)


def total_of(text: str) -> int | None:
    """Return the number after the last `Total:`, or None."""
    found = re.findall(r"Total:\s*(-?\d+)", text.replace(",", ""))
    return int(found[-1]) if found else None

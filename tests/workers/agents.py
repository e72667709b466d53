"""Agents and reward functions that a worker can import."""

from typing import Any

from slime_agl.testing import chat_agent, sync_agent

four_turns = chat_agent(turns=4)
blocking = sync_agent(turns=2)
unpaid = chat_agent(turns=1, reward=None)


async def pays_two(args: Any, sample: Any, **kwargs: Any) -> float:
    return 2.0


async def pays_three(args: Any, sample: Any, **kwargs: Any) -> float:
    return 3.0

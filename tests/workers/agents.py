"""Agents and reward functions that a worker can import."""

import asyncio
from typing import Any

import agentlightning as agl
import openai

from slime_agl.testing import chat_agent, sync_agent

four_turns = chat_agent(turns=4)
blocking = sync_agent(turns=2)
unpaid = chat_agent(turns=1, reward=None)


_THREE = asyncio.Event()
_begun: set[str] = set()


@agl.rollout
async def together(task: Any, llm: agl.LLM) -> float:
    """Ask once; the first four end, the others when three of them run at a time in this process."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": str(task)}])
    _begun.add(llm.endpoint)
    if len(_begun) > 4:
        if len(_begun) >= 7:
            _THREE.set()
        await _THREE.wait()
    return 1.0


async def pays_two(args: Any, sample: Any, **kwargs: Any) -> float:
    return 2.0


async def pays_three(args: Any, sample: Any, **kwargs: Any) -> float:
    return 3.0

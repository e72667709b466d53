"""An agent of Agent Lightning that must open the right box to learn the code to answer.

It knows nothing of slime or slime_agl: it gets a task and an LLM, and returns its reward.
"""

from __future__ import annotations

import json
from typing import Any, TypedDict

import agentlightning as agl
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "open",
            "description": "Open a box and say what lies in it.",
            "parameters": {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]},
        },
    }
]


class Task(TypedDict):
    """box: the one to open; code: what lies in it."""

    box: str
    code: str


def tasks() -> list[Task]:
    """Every pair of box and code."""
    return [{"box": box, "code": code} for code in ("12", "34", "56") for box in ("red", "tan")]


@agl.rollout
async def boxes(task: Task, llm: agl.LLM) -> float:
    """Let the model open a box, then answer. Returns 1 for the right box and code, 0.2 for the right box alone."""
    messages: list[Any] = [{"role": "user", "content": task["box"]}]
    reward = 0.0
    http = DefaultAsyncHttpxClient(verify=False)  # the endpoint is plain HTTP; loading certificates would take longer
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", http_client=http) as client:
        for _ in range(2):
            completion = await client.chat.completions.create(
                model=llm.model, messages=messages, tools=TOOLS, max_tokens=8
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                return 1.0 if reward and (message.content or "").strip() == task["code"] else reward
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                right = json.loads(call.function.arguments).get("box") == task["box"]
                reward = max(reward, 0.2 if right else 0.0)
                content = task["code"] if right else "empty"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return reward

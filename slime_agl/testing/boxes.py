"""An agent whose task takes two turns, and which a very small model can learn.

A row names a box (`prompt`) and the code that lies in it (`label`). The model is told the box; the code it can only
learn from the tool `open`. The agent is a plain one: it knows the OpenAI client and Agent Lightning.
"""

from __future__ import annotations

import json
from typing import Any

import openai
from agentlightning.litagent import rollout

from slime_agl.local.train.boxes import EMPTY

__all__ = ["boxes"]

MAX_TURNS = 2
MAX_TOKENS = 8
FOUND = 0.2

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "open",
            "description": "Open a box and say what lies in it.",
            "parameters": {"type": "object", "properties": {"box": {"type": "string"}}, "required": ["box"]},
        },
    }
]


@rollout
async def boxes(task: Any, llm: Any) -> float:
    """Let the model look and answer.

    Returns the reward: 1 when it opened the box it was asked for and then said the code, 0.2 when it only opened
    the box, else 0. A code that was not looked up earns nothing.
    """
    box, code = task["prompt"], task["label"]
    messages: list[Any] = [{"role": "user", "content": box}]
    reward = 0.0
    # Without TLS: reading the certificates takes longer than everything else an execution does.
    http = openai.DefaultAsyncHttpxClient(verify=False)
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", http_client=http) as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model=llm.model, messages=messages, tools=TOOLS, max_tokens=MAX_TOKENS
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                return 1.0 if reward and (message.content or "").strip() == code else reward
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                found = code if _opened(call) == box else EMPTY
                reward = max(reward, FOUND if found == code else 0.0)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return reward


def _opened(call: Any) -> Any:
    """The box that a call opens; None when it is no call of the tool."""
    return json.loads(call.function.arguments).get("box") if call.function.name == "open" else None

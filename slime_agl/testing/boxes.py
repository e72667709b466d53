"""An agent with a two-turn task that a very small model can learn.

A row names a box (`prompt`) and the code in it (`label`). The model gets the box; only the tool `open` tells the code.
A plain agent: it uses the OpenAI client and Agent Lightning, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import openai
from agentlightning.litagent import rollout
from agentlightning.types import LLM
from openai.types.chat import ChatCompletionMessageToolCallUnion, ChatCompletionToolParam

from slime_agl.local.train.boxes import EMPTY

__all__ = ["boxes"]

MAX_TURNS = 2
MAX_TOKENS = 8
FOUND = 0.2

TOOLS: list[ChatCompletionToolParam] = [
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
async def boxes(task: Mapping[str, str], llm: LLM) -> float:
    """Let the model open a box and answer.

    Returns the reward: 1 if it opened the requested box and then said the code, 0.2 if it only opened the box, else 0.
    A guessed code earns nothing.
    """
    box, code = task["prompt"], task["label"]
    messages: list = [{"role": "user", "content": box}]
    reward = 0.0
    # Without TLS: loading the certificates would take longer than the rest of an execution.
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
                found = code if opened_by(call) == box else EMPTY
                reward = max(reward, FOUND if found == code else 0.0)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return reward


def opened_by(call: ChatCompletionMessageToolCallUnion) -> object:
    """Return the box that a call opens; None for any other call."""
    if call.type != "function" or call.function.name != "open":
        return None
    return json.loads(call.function.arguments).get("box")

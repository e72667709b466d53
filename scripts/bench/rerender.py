"""The common gateway design, for comparison: render and encode the whole chat at every turn."""

from __future__ import annotations

import re
import uuid
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from slime_agl.chat.template.loader import load_tokenizer

CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
SAMPLING = {"temperature": 1.0, "max_new_tokens": 512}


class Rerender:
    """Chat completions over `/generate`; keeps the tokens of every turn by session."""

    def __init__(self, client: aiohttp.ClientSession, engine: str, model: str) -> None:
        self._client, self._url = client, f"{engine}/generate"
        self._tokenizer = load_tokenizer(model)
        self._core = self._tokenizer.backend_tokenizer
        self.turns: dict[str, list[tuple[list[int], list[int], list[float]]]] = {}

    async def chat(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        messages = [self._readable(message) for message in body["messages"]]
        text = self._tokenizer.apply_chat_template(
            messages, tools=body.get("tools"), add_generation_prompt=True, tokenize=False
        )
        prompt = self._core.encode(text, add_special_tokens=False).ids
        asked = {"input_ids": prompt, "sampling_params": SAMPLING, "return_logprob": True}
        headers = {"Content-Type": "application/json"}
        async with self._client.post(self._url, data=orjson.dumps(asked), headers=headers) as response:
            meta = orjson.loads(await response.read())["meta_info"]
        ids = [entry[1] for entry in meta["output_token_logprobs"]]
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        self.turns.setdefault(request.path, []).append((prompt, ids, logprobs))
        message = self._message(self._core.decode(ids[:-1], skip_special_tokens=False))
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
        answer = {"id": uuid.uuid4().hex, "object": "chat.completion", "choices": [choice], "usage": usage}
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    @staticmethod
    def _readable(message: dict[str, Any]) -> dict[str, Any]:
        """Parse call arguments: templates expect an object."""
        if "tool_calls" not in message:
            return message
        calls = [
            {**call, "function": {**call["function"], "arguments": orjson.loads(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
        return {**message, "content": message["content"] or "", "tool_calls": calls}

    @staticmethod
    def _message(text: str) -> dict[str, Any]:
        calls = [orjson.loads(found) for found in CALL.findall(text)]
        message: dict[str, Any] = {"role": "assistant", "content": CALL.sub("", text).strip() or None}
        if calls:
            message["tool_calls"] = [
                {
                    "id": uuid.uuid4().hex,
                    "type": "function",
                    "function": {"name": call["name"], "arguments": orjson.dumps(call["arguments"]).decode()},
                }
                for call in calls
            ]
        return message

"""OpenAI's chat completions protocol: wire shapes in and out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.request import Answer, TurnRequest
from slime_agl.trace.turn import LENGTH, Turn

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed")
REFUSED_FIELDS = {
    "functions": "use `tools` instead of the deprecated `functions`",
    "function_call": "use `tool_choice` instead of the deprecated `function_call`",
    "audio": "this endpoint answers with text only",
    "web_search_options": "this endpoint has no web search",
    "logit_bias": "the trained distribution must not be biased",
    "top_logprobs": "only the sampled token's logprob is available (`logprobs: true`)",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How the answer is wanted: as events or as one body, with usage in the last event, with logprobs."""

    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False


def read_request(body: Any, default_model: str) -> tuple[TurnRequest, Shape]:
    """Check a request body.

    Raises:
        Refusal: 400, naming the field, before anything is sampled.
    """
    if not isinstance(body, dict):
        raise Refusal(400, f"the request body must be a JSON object, got {type(body).__name__}")
    for name, reason in REFUSED_FIELDS.items():
        if body.get(name):
            raise bad_field(name, f"{name} is not supported: {reason}")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise bad_field("messages", "messages must be a non-empty list of objects")
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise bad_field(
            "tool_choice", f"tool_choice {choice!r} cannot be enforced on the trained policy; use 'auto' or 'none'"
        )
    request = TurnRequest(
        messages=messages,
        model=body.get("model") or default_model,
        tools=None if choice == "none" else _tools(body),
        template_kwargs=_mapping(body, "chat_template_kwargs"),
        max_tokens=_count(body, "max_completion_tokens") or _count(body, "max_tokens"),
        stop=_stop(body),
        sampling={name: body[name] for name in SAMPLING_FIELDS if body.get(name) is not None},
        constraint=_constraint(body.get("response_format")),
        n=_count(body, "n", most=128) or 1,
    )
    options = _mapping(body, "stream_options")
    return request, Shape(bool(body.get("stream")), bool(options.get("include_usage")), bool(body.get("logprobs")))


def _count(body: Mapping[str, Any], name: str, most: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        upper = f" and at most {most}" if most is not None else ""
        raise bad_field(name, f"{name} is {value!r}, it must be a whole number of at least 1{upper}")
    return value


def _mapping(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_field(name, f"{name} must be an object, got {type(value).__name__}")
    return value


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, list | tuple) or not all(isinstance(text, str) and text for text in stop):
        raise bad_field("stop", "stop must be a string or a list of non-empty strings")
    return tuple(stop)


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools = body.get("tools")
    if not tools:
        return None
    if not isinstance(tools, list):
        raise bad_field("tools", f"tools must be a list, got {type(tools).__name__}")
    for at, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_field(f"tools[{at}]", f"tools[{at}] must be {{type: 'function', function: {{name, ...}}}}")
    return tools


def _constraint(response_format: Any) -> dict[str, Any]:
    """SGLang's parameter for a response_format. Raises Refusal for kinds it does not know."""
    kind = response_format.get("type") if isinstance(response_format, dict) else response_format
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    schema = response_format.get("json_schema") if isinstance(response_format, dict) else None
    if kind == "json_schema" and isinstance(schema, dict) and isinstance(schema.get("schema"), dict):
        return {"json_schema": json.dumps(schema["schema"])}
    raise bad_field(
        "response_format", f"response_format of type {kind!r} is not supported; use text, json_object or json_schema"
    )


def completion(
    answers: list[Answer], request: TurnRequest, shape: Shape, decode: Callable[[list[int]], str]
) -> dict[str, Any]:
    """The body of a chat.completion."""
    choices = []
    for number, answer in enumerate(answers):
        choice = {"index": number, "message": _message(answer), "finish_reason": finish_reason(answer)}
        choice["logprobs"] = {"content": _logprobs(answer.turn, decode)} if shape.logprobs else None
        choices.append(choice)
    return {**_head(answers, request, "chat.completion"), "choices": choices, "usage": usage(answers)}


def chunks(
    answers: list[Answer], request: TurnRequest, shape: Shape, decode: Callable[[list[int]], str]
) -> Iterator[dict[str, Any]]:
    """The chat.completion.chunk events of a finished turn."""
    head = _head(answers, request, "chat.completion.chunk")
    for number, answer in enumerate(answers):
        message = _message(answer)
        calls = message.pop("tool_calls", None)
        delta = {name: value for name, value in message.items() if value is not None}
        logprobs = {"content": _logprobs(answer.turn, decode)} if shape.logprobs else None
        yield head | {"choices": [{"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": None}]}
        if calls:
            delta = {"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}
            yield head | {"choices": [{"index": number, "delta": delta, "finish_reason": None}]}
        end = {"index": number, "delta": {}, "finish_reason": finish_reason(answer)}
        yield head | {"choices": [end]}
    if shape.include_usage:
        yield head | {"choices": [], "usage": usage(answers)}


def finish_reason(answer: Answer) -> str:
    if answer.reply.tool_calls:
        return "tool_calls"
    return "length" if answer.turn.finish == LENGTH else "stop"


def usage(answers: list[Answer]) -> dict[str, Any]:
    prompt = answers[0].prompt_tokens
    output = sum(answer.turn.output_length for answer in answers)
    cached = max((part.cached_tokens for answer in answers for part in answer.turn.parts[:1]), default=0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error_body(refusal: Refusal) -> dict[str, Any]:
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return {"error": error}


def _head(answers: list[Answer], request: TurnRequest, kind: str) -> dict[str, Any]:
    turn = answers[0].turn
    return {"id": turn.turn_id, "object": kind, "created": int(turn.ended), "model": request.model}


def _message(answer: Answer) -> dict[str, Any]:
    reply = answer.reply
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or (None if reply.tool_calls else "")}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    return message


def _logprobs(turn: Turn, decode: Callable[[list[int]], str]) -> list[dict[str, Any]]:
    entries = []
    for token, logprob in zip(turn.output_ids(), turn.output_logprobs(), strict=True):
        text = decode([token])
        entries.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return entries

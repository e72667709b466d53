"""Anthropic's Messages protocol: requests and the message object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slime_agl.chat.template.tools import Tools
from slime_agl.gateway.protocols import fields
from slime_agl.gateway.protocols.anthropic.blocks import block_events, blocks_of, messages_of, system_message
from slime_agl.gateway.protocols.chat import Usage, forced_tool
from slime_agl.gateway.protocols.hosted import hosted
from slime_agl.gateway.protocols.protocol import event
from slime_agl.gateway.refusal import CONTEXT_OVERFLOW, Refusal, bad_field
from slime_agl.gateway.repeats import Frame
from slime_agl.gateway.request import Message, TurnAnswer, TurnRequest
from slime_agl.gateway.sessions.session import Session
from slime_agl.gateway.turn.begun import begun_text
from slime_agl.trace.turn import LENGTH

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
FIELDS = fields.Table(
    honoured=frozenset(
        {"messages", "model", "system", "max_tokens", "stop_sequences", "stream", "tools", "tool_choice", "thinking"}
        | {"output_config", "output_format", "context_management", "chat_template_kwargs", "enable_thinking"}
        | fields.SAMPLING.keys()
    ),
    ignored={
        **fields.BOOKKEEPING,
        "inference_geo": "chooses where a service computes",
        "speed": "chooses a price and a queue",
        "cache_control": "asks a service to cache the prompt; the engine does so by itself",
    },
    refused={
        "mcp_servers": "this endpoint reaches no tool servers",
        "container": "this endpoint has no containers",
    },
)


class AnthropicMessages:
    """The Messages dialect. model: default model name."""

    array = "messages"

    def __init__(self, model: str) -> None:
        self._model = model

    def read(self, body: object, session: Session, frame: Frame | None = None) -> MessageExchange:
        options = fields.options(FIELDS, body, frame, self._options, session.count)
        if options.exchange.request.max_tokens is None:
            raise bad_field("max_tokens", "max_tokens is missing; this protocol requires it")
        known, made = session.seen.known(body.get("messages"), self) if isinstance(body, dict) else (0, ())
        told = _told(body, known)
        made = [*made, *messages_of(told[known:], known)]
        session.seen.accept(told, self, made)
        return options.with_messages(made)

    def read_count(self, body: object) -> TurnRequest:
        """Parse a `count_tokens` request. Raises Refusal as `read` does."""
        options = fields.options(FIELDS, body, None, self._options, fields.uncounted)
        return options.with_messages(messages_of(_told(body))).request

    def _options(self, body: dict[str, Any], count: fields.Count) -> _Options:
        """Read everything but the messages."""
        tools, forced, one_call = _tools(body, count)
        thinking = fields.mapping(body, "thinking")
        output = fields.mapping(body, "output_config")
        _check_context(body)
        request = TurnRequest(
            messages=[],
            model=fields.model(body, self._model),
            tools=tools,
            template_kwargs=_thinking_kwargs(thinking) | fields.template_kwargs(body, output.get("effort")),
            max_tokens=fields.count(body, "max_tokens"),
            stop=fields.stops(body, "stop_sequences"),
            sampling=fields.sampling(body),
            constraint=fields.constraint(output.get("format") or body.get("output_format"), "output_config.format"),
            id_prefix="msg_",
            one_call=one_call,
            forced=forced,
        )
        exchange = MessageExchange(
            request, bool(body.get("stream")), thinking=thinking.get("type") in ("enabled", "adaptive")
        )
        return _Options(exchange, system_message(body.get("system") or ""))

    def error(self, refusal: Refusal) -> dict[str, Any]:
        # Clients match these words to decide whether to shorten a conversation.
        said = "prompt is too long: " if refusal.code == CONTEXT_OVERFLOW else ""
        error = {"type": ERROR_TYPES.get(refusal.status, "api_error"), "message": said + refusal.message}
        if refusal.code is not None:
            error["code"] = refusal.code
        return {"type": "error", "error": error, "request_id": None}

    def error_event(self, refusal: Refusal) -> bytes:
        return event(self.error(refusal), "error")


class MessageExchange(Struct, frozen=True):
    """A request. thinking: the agent wants the reasoning."""

    request: TurnRequest
    stream: bool
    thinking: bool

    @property
    def turns(self) -> tuple[TurnRequest, ...]:
        return (self.request,)

    def body(self, answers: list[TurnAnswer]) -> dict[str, Any]:
        """The message object."""
        (answer,) = answers
        reason, stopped_by = self._stop(answer)
        return {
            "id": answer.turn.turn_id,
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": blocks_of(answer, thinking=self.thinking),
            "stop_reason": reason,
            "stop_sequence": stopped_by,
            "usage": _usage(Usage.of(answers)),
        }

    def events(self, answers: list[TurnAnswer]) -> Iterator[bytes]:
        message = self.body(answers)
        begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
        begun["usage"] = {**message["usage"], "output_tokens": 0}
        yield _event({"type": "message_start", "message": begun})
        yield _event({"type": "ping"})
        for index, block in enumerate(message["content"]):
            for body in block_events(index, block):
                yield _event(body)
        ending = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
        yield _event({"type": "message_delta", "delta": ending, "usage": message["usage"]})
        yield _event({"type": "message_stop"})

    def _stop(self, answer: TurnAnswer) -> tuple[str, str | None]:
        if answer.reply.tool_calls:
            return "tool_use", None
        if answer.turn.finish == LENGTH:
            return "max_tokens", None
        if answer.turn.matched in self.request.stop:
            return "stop_sequence", answer.turn.matched
        return "end_turn", None


class _Options(Struct, frozen=True):
    """A request without its messages. system: those that stand before them."""

    exchange: MessageExchange
    system: list[Message]

    def with_messages(self, told: list[Message]) -> MessageExchange:
        messages = [*self.system, *told]
        request = self.exchange.request
        # In this protocol a final assistant message always starts the reply.
        begun = None if request.forced else begun_text(messages)
        request = replace(request, messages=messages if begun is None else messages[:-1], begun=begun)
        return replace(self.exchange, request=request)


def _told(body: object, known: int = 0) -> list[dict[str, Any]]:
    told = fields.objects(body, "messages", known=known) if isinstance(body, dict) else []
    if not told:
        raise bad_field("messages", "messages must be a non-empty list of objects")
    return told


def _event(body: dict[str, Any]) -> bytes:
    return event(body, body["type"])


def _tools(body: Mapping[str, Any], count: fields.Count) -> tuple[Tools | None, str, bool]:
    """Read the tools in chat shape, TurnRequest.forced and TurnRequest.one_call."""
    tools = []
    for at, tool in enumerate(fields.objects(body, "tools")):
        if tool.get("type") not in (None, "custom") or not isinstance(tool.get("name"), str):
            if hosted(tool, count):
                continue
            raise bad_field(
                f"tools[{at}]",
                f"tools[{at}] is of type {tool.get('type')!r}; tools that Anthropic defines are not available, "
                "only custom ones {name, description, input_schema}",
            )
        function = {"name": tool["name"], "parameters": tool.get("input_schema") or {"type": "object"}}
        if tool.get("description"):
            function["description"] = tool["description"]
        tools.append({"type": "function", "function": function})
    choice = fields.mapping(body, "tool_choice")
    kind, one_call = choice.get("type"), bool(choice.get("disable_parallel_tool_use"))
    if kind in (None, "auto"):
        return Tools(tools) if tools else None, "", one_call
    if kind == "none":
        return None, "", one_call
    return Tools(tools), forced_tool(kind, choice.get("name") if kind == "tool" else None, tools), one_call


def _thinking_kwargs(thinking: Mapping[str, Any]) -> dict[str, Any]:
    """Template variables for thinking. Templates only know on and off; a budget is an upper bound, so it is ignored."""
    kind = thinking.get("type")
    if kind not in (None, "enabled", "disabled", "adaptive"):
        raise bad_field("thinking", f"thinking.type is {kind!r}; it must be enabled, disabled or adaptive")
    return {"enable_thinking": kind == "enabled"} if kind in ("enabled", "disabled") else {}


def _check_context(body: Mapping[str, Any]) -> None:
    """Refuse context edits, except keeping all thinking, which changes nothing here."""
    for edit in fields.objects(fields.mapping(body, "context_management"), "edits"):
        if not str(edit.get("type")).startswith("clear_thinking") or edit.get("keep") != "all":
            raise bad_field(
                "context_management",
                f"context_management edit {edit.get('type')!r} is not supported: the agent has to shorten "
                "its history itself",
            )


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }

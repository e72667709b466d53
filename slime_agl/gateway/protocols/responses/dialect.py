"""OpenAI's Responses protocol: requests and the response object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from slime_agl.gateway.protocols import fields
from slime_agl.gateway.protocols.chat import MOST_ALTERNATIVES, Usage
from slime_agl.gateway.protocols.logprobs import TokenBytes
from slime_agl.gateway.protocols.protocol import event, openai_error
from slime_agl.gateway.protocols.responses.events import response_events
from slime_agl.gateway.protocols.responses.items import items_of, messages_of
from slime_agl.gateway.protocols.responses.stored import Item, StoredResponse, StoredResponses, history
from slime_agl.gateway.protocols.responses.tools import Offer, read_tools
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.repeats import Frame
from slime_agl.gateway.request import TurnAnswer, TurnRequest
from slime_agl.gateway.sessions.session import Session
from slime_agl.trace.turn import LENGTH

SEALED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
ECHOED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "user", "temperature", "top_p"),
    *("service_tier", "safety_identifier", "prompt_cache_key"),
)
FIELDS = fields.Table(
    honoured=frozenset(
        {"input", "model", "instructions", "previous_response_id", "tools", "tool_choice", "parallel_tool_calls"}
        | {"text", "reasoning", "include", "max_output_tokens", "top_logprobs", "stream", "store"}
        | {"chat_template_kwargs", "enable_thinking", "regex", "ebnf"}
        | fields.SAMPLING.keys()
    ),
    ignored={
        **{name: reason for name, reason in fields.BOOKKEEPING.items() if name != "store"},
        "stream_options": "asks for padding of events, against eavesdroppers",
        "max_tool_calls": "bounds the calls of tools that a service runs, of which there are none",
    },
    fixed={"truncation": ("disabled",), "background": (False,), "logit_bias": ({},)},
    refused={
        "conversation": "pass the items themselves, or previous_response_id",
        "prompt": "this endpoint stores no prompt templates; send instructions and input",
        "context_management": "the agent has to shorten its history itself",
    },
)


class Responses:
    """The Responses dialect. model: default model name. token_bytes: bytes of each id, for logprobs."""

    array = "input"

    def __init__(self, model: str, token_bytes: TokenBytes) -> None:
        self._model, self._token_bytes = model, token_bytes

    def read(self, body: object, session: Session, frame: Frame | None = None) -> ResponseExchange:
        body = FIELDS.check(body, session.count)
        items = _items(body)
        previous = _previous(body, session.stored)
        messages = messages_of([*history(previous), *items], session.stored.item)
        instructions = body.get("instructions")
        if instructions is not None and not isinstance(instructions, str):
            raise bad_field("instructions", "instructions must be a text")
        if instructions:
            messages.insert(0, {"role": "system", "content": instructions})
        if not messages:
            raise bad_field("input", "input must be a text or a non-empty list of items")
        include = body.get("include") or []
        if not isinstance(include, list) or not all(isinstance(name, str) for name in include):
            raise bad_field("include", "include must be a list of names")
        alternatives = fields.count(body, "top_logprobs", least=0, most=MOST_ALTERNATIVES)
        offer = read_tools(body, session.count)
        request = TurnRequest(
            messages=messages,
            model=fields.model(body, self._model),
            tools=offer.tools,
            template_kwargs=fields.template_kwargs(body, fields.mapping(body, "reasoning").get("effort")),
            max_tokens=fields.count(body, "max_output_tokens"),
            sampling=fields.sampling(body),
            constraint=_constraint(body),
            extra=fields.top_logprobs(alternatives),
            id_prefix="resp_",
            one_call=body.get("parallel_tool_calls") is False,
            forced=offer.forced,
        )
        return ResponseExchange(
            request=request,
            fields=body,
            items=tuple(items),
            previous=previous,
            store=None if body.get("store") is False else session.stored,
            stream=bool(body.get("stream")),
            token_bytes=self._token_bytes if LOGPROBS in include else None,
            sealed_reasoning=SEALED_REASONING in include,
            offer=offer,
        )

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return openai_error(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        error = {"code": refusal.code or refusal.type, "message": refusal.message, "param": refusal.param}
        return event({"type": "error", **error, "sequence_number": 0}, "error")


class ResponseExchange(Struct, frozen=True, kw_only=True):
    """A request. fields: its body. items, previous: its input. store: where to keep its answer, if anywhere.

    offer: its tools.
    """

    request: TurnRequest
    fields: Mapping[str, Any]
    items: tuple[Item, ...]
    previous: StoredResponse | None
    store: StoredResponses | None
    stream: bool
    token_bytes: TokenBytes | None
    sealed_reasoning: bool
    offer: Offer

    @property
    def turns(self) -> tuple[TurnRequest, ...]:
        return (self.request,)

    def body(self, answers: list[TurnAnswer]) -> dict[str, Any]:
        """The response object, which is also stored unless the agent keeps its own state."""
        (answer,) = answers
        output = items_of(
            answer, token_bytes=self.token_bytes, sealed_reasoning=self.sealed_reasoning, offer=self.offer
        )
        cut = answer.turn.finish == LENGTH and not answer.reply.tool_calls
        body = {
            "id": answer.turn.turn_id,
            "object": "response",
            "created_at": int(answer.turn.started),
            "completed_at": None if cut else int(answer.turn.ended),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "error": None,
            "background": False,
            "model": self.request.model,
            "output": output,
            "usage": _usage(Usage.of(answers)),
            **self._echo(),
        }
        if self.store is not None:
            self.store.keep(StoredResponse(self.previous, self.items, body))
        return body

    def events(self, answers: list[TurnAnswer]) -> Iterator[bytes]:
        return response_events(self.body(answers))

    def _echo(self) -> dict[str, Any]:
        """Request fields that the response repeats."""
        given = self.fields
        return {name: given.get(name) for name in ECHOED} | {
            "metadata": given.get("metadata") or {},
            "parallel_tool_calls": given.get("parallel_tool_calls", True),
            "reasoning": {"effort": None, "summary": None} | fields.mapping(given, "reasoning"),
            "store": self.store is not None,
            "text": {"format": {"type": "text"}} | fields.mapping(given, "text"),
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools", []),
            "top_logprobs": given.get("top_logprobs", 0),
            "truncation": "disabled",
        }


def _items(body: Mapping[str, Any]) -> list[Item]:
    if isinstance(body.get("input"), str):
        return [{"type": "message", "role": "user", "content": body["input"]}]
    return fields.objects(body, "input")


def _previous(body: Mapping[str, Any], stored: StoredResponses) -> StoredResponse | None:
    name = body.get("previous_response_id")
    found = stored.find(name) if isinstance(name, str) else None
    if name is not None and found is None:
        raise Refusal(
            400,
            f"no response {name!r} is stored for this attempt; it was made with store: false, or by another attempt",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    return found


def _constraint(body: Mapping[str, Any]) -> dict[str, Any]:
    text = fields.mapping(body, "text")
    if text.get("verbosity") not in (None, "medium"):
        raise bad_field(
            "text.verbosity", f"text.verbosity is {text['verbosity']!r}; the trained model has no such setting"
        )
    return fields.constraint(text.get("format"), "text.format") | fields.grammar(body)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.output,
    }


def stored_response(stored: StoredResponses, name: str) -> StoredResponse:
    """Find a stored response. Raises Refusal, 404, if there is none of that name."""
    found = stored.find(name)
    if found is None:
        raise Refusal(404, f"no response {name!r} is stored for this attempt", type="not_found_error", param="id")
    return found

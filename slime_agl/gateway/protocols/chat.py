"""OpenAI's chat completions protocol: requests and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slime_agl.chat.template.messages import wire_message
from slime_agl.chat.template.tools import Tools
from slime_agl.gateway.protocols import fields
from slime_agl.gateway.protocols.custom import custom_tool
from slime_agl.gateway.protocols.hosted import hosted
from slime_agl.gateway.protocols.logprobs import TokenBytes, chat_logprobs
from slime_agl.gateway.protocols.protocol import event, openai_error
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.repeats import Frame
from slime_agl.gateway.request import ANY_TOOL, TurnAnswer, TurnRequest
from slime_agl.gateway.sessions.session import Session
from slime_agl.gateway.turn.begun import BEGUN_FIELDS, split_begun
from slime_agl.trace.turn import LENGTH

DONE = b"data: [DONE]\n\n"
MOST_ANSWERS = 128
MOST_ALTERNATIVES = 20
TEXT_OR_NONE = {str, type(None)}

# Fields of vLLM and SGLang servers that change no token, with the reason.
ENGINE_BOOKKEEPING = {
    "rid": "names a request at its server; here the gateway names it",
    "session_id": "places a request on a server; here an attempt's turns stay on one engine",
    "cache_salt": "separates prefix caches, which change no token",
    "priority": "orders a server's queue",
    "skip_special_tokens": "formats the text of an answer; special tokens never show here",
}
FIELDS = fields.Table(
    honoured=frozenset(
        {"messages", "model", "tools", "tool_choice", "parallel_tool_calls", "max_tokens", "max_completion_tokens"}
        | {"n", "stop", "stop_token_ids", "stream", "stream_options", "logprobs", "top_logprobs", "response_format"}
        | BEGUN_FIELDS
        | {
            "regex",
            "ebnf",
            "chat_template_kwargs",
            "enable_thinking",
            "reasoning_effort",
            "return_token_ids",
        }
        | fields.SAMPLING.keys()
    ),
    ignored={
        **fields.BOOKKEEPING,
        **ENGINE_BOOKKEEPING,
        "prediction": "guesses the answer, to speed up its sampling",
    },
    fixed={
        "modalities": (["text"],),
        "verbosity": ("medium",),
        "logit_bias": ({},),
        "separate_reasoning": (True,),
        "stream_reasoning": (True,),
        "ignore_eos": (False,),
        "include_stop_str_in_output": (False,),
        "echo": (False,),
    },
    refused={
        "functions": "use `tools` instead of the deprecated `functions`",
        "function_call": "use `tool_choice` instead of the deprecated `function_call`",
        "audio": "this endpoint answers with text only",
        "web_search_options": "this endpoint has no web search",
    },
)


class ChatCompletions:
    """The chat dialect. model: default model name. token_bytes: bytes of each id, for logprobs."""

    array = "messages"

    def __init__(self, model: str, token_bytes: TokenBytes) -> None:
        self._model, self._token_bytes = model, token_bytes

    def read(self, body: object, session: Session, frame: Frame | None = None) -> ChatExchange:
        exchange = fields.options(FIELDS, body, frame, self._options, session.count)
        assert isinstance(body, dict), "options were read from it"
        known, _ = session.seen.known(body.get("messages"), self)
        messages = fields.objects(body, "messages", known=known)
        if not messages:
            raise bad_field("messages", "messages must be a non-empty list of objects")
        _check_calls(messages, known)
        session.seen.accept(messages, self)
        request, begun = exchange.request, None
        if not body.keys().isdisjoint(BEGUN_FIELDS):
            messages, begun = split_begun(body, messages)
        if request.forced and begun is not None:
            raise bad_field(
                "tool_choice", f"tool_choice {body['tool_choice']!r} starts the reply, as the last message already does"
            )
        return replace(exchange, request=replace(request, messages=messages, begun=begun))

    def _options(self, body: dict[str, Any], count: fields.Count) -> ChatExchange:
        """Read everything but the messages."""
        tools, forced, customs = _tools(body, count)
        options = fields.mapping(body, "stream_options")
        alternatives = fields.count(body, "top_logprobs", least=0, most=MOST_ALTERNATIVES)
        if alternatives is not None and not body.get("logprobs"):
            raise bad_field("top_logprobs", "top_logprobs needs logprobs: true")
        request = TurnRequest(
            messages=[],
            model=fields.model(body, self._model),
            tools=tools,
            template_kwargs=fields.template_kwargs(body, body.get("reasoning_effort")),
            max_tokens=fields.count(body, "max_completion_tokens") or fields.count(body, "max_tokens"),
            stop=fields.stops(body),
            stop_ids=fields.ids(body.get("stop_token_ids", []), "stop_token_ids"),
            sampling=fields.sampling(body),
            constraint=fields.constraint(body.get("response_format"), "response_format") | fields.grammar(body),
            extra=fields.top_logprobs(alternatives),
            n=fields.count(body, "n", most=MOST_ANSWERS) or 1,
            one_call=body.get("parallel_tool_calls") is False,
            forced=forced,
            return_ids=bool(body.get("return_token_ids")),
        )
        return ChatExchange(
            request=request,
            token_bytes=self._token_bytes,
            stream=bool(body.get("stream")),
            include_usage=bool(options.get("include_usage")),
            logprobs=bool(body.get("logprobs")),
            customs=customs,
        )

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return openai_error(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        return event(openai_error(refusal))


class ChatExchange(Struct, frozen=True, kw_only=True):
    """A request. include_usage: in the last event of a stream. logprobs: of every sampled token.

    customs: names of its custom tools.
    """

    request: TurnRequest
    token_bytes: TokenBytes
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    customs: frozenset[str] = frozenset()

    @property
    def turns(self) -> tuple[TurnRequest, ...]:
        return (self.request,)

    def body(self, answers: list[TurnAnswer]) -> dict[str, Any]:
        """The chat.completion object."""
        choices = []
        for number, answer in enumerate(answers):
            choice = {
                "index": number,
                "message": wire_message(answer.reply, self.customs),
                "finish_reason": finish_reason(answer),
            }
            choices.append(choice | {"logprobs": self._logprobs(answer)} | self._ids(answer))
        head = self._head(answers, "chat.completion")
        return {**head, "choices": choices, "usage": usage_of(Usage.of(answers, self.request.n))}

    def events(self, answers: list[TurnAnswer]) -> Iterator[bytes]:
        """The chat.completion.chunk events."""
        for chunk in self._chunks(answers):
            yield event(chunk)
        yield DONE

    def _chunks(self, answers: list[TurnAnswer]) -> Iterator[dict[str, Any]]:
        head = self._head(answers, "chat.completion.chunk")
        for number, answer in enumerate(answers):
            message = wire_message(answer.reply, self.customs)
            calls = message.pop("tool_calls", None)
            said = {"index": number, "delta": {name: text for name, text in message.items() if text is not None}}
            said |= {"logprobs": self._logprobs(answer), "finish_reason": None}
            yield head | {"choices": [said | self._ids(answer)]}
            if calls:
                delta = {"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]}
                yield head | {"choices": [{"index": number, "delta": delta, "finish_reason": None}]}
            yield head | {"choices": [{"index": number, "delta": {}, "finish_reason": finish_reason(answer)}]}
        if self.include_usage:
            yield head | {"choices": [], "usage": usage_of(Usage.of(answers, self.request.n))}

    def _head(self, answers: list[TurnAnswer], kind: str) -> dict[str, Any]:
        turn = answers[0].turn
        head = {"id": turn.turn_id, "object": kind, "created": int(turn.ended), "model": self.request.model}
        if answers[0].prompt_ids is not None:
            head["prompt_token_ids"] = answers[0].prompt_ids.tolist()
        return head

    def _logprobs(self, answer: TurnAnswer) -> dict[str, Any] | None:
        return {"content": chat_logprobs(answer.turn, self.token_bytes)} if self.logprobs else None

    def _ids(self, answer: TurnAnswer) -> dict[str, Any]:
        return {"token_ids": answer.turn.output_ids().tolist()} if self.request.return_ids else {}


class Usage(Struct, frozen=True):
    """Token counts of a call: prompt, prefix cache hits, output, and reasoning if known."""

    prompt: int
    cached: int
    output: int
    reasoning: int

    @classmethod
    def of(cls, answers: Sequence[TurnAnswer], n: int = 1) -> Usage:
        """Add up a call's answers, of which each n share a prompt."""
        prompt = cached = output = reasoning = 0
        for at, answer in enumerate(answers):
            parts = answer.turn.parts
            if at % n == 0:
                prompt += answer.prompt_tokens
                cached += parts[0].cached_tokens if parts else 0
            for part in parts:
                output += len(part.ids)
                reasoning += part.meta.get("reasoning_tokens") or 0
        return cls(prompt, cached, output, reasoning)


def finish_reason(answer: TurnAnswer) -> str:
    if answer.reply.tool_calls:
        return "tool_calls"
    return "length" if answer.turn.finish == LENGTH else "stop"


def usage_of(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object for the completions protocols."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def forced_tool(choice: Any, name: Any, tools: list[dict[str, Any]] | None) -> str:
    """Read TurnRequest.forced from a choice other than auto or none. name: the tool it names, if any.

    Raises:
        Refusal: the tool does not exist, or the choice is of an unknown kind.
    """
    names = [tool["function"]["name"] for tool in tools or ()]
    if choice in ("required", "any") and names:
        return ANY_TOOL
    if isinstance(name, str) and name in names:
        return name
    raise bad_field(
        "tool_choice",
        f"tool_choice {choice!r} cannot be met; use 'auto', 'none', 'required', or name one of the tools: "
        f"{', '.join(names) or 'this request has none'}",
    )


def _check_calls(messages: list[dict[str, Any]], known: int) -> None:
    """Refuse messages with malformed tool calls. known: number of leading ones that were checked before."""
    given = [calls for message in messages[known:] if (calls := message.get("tool_calls"))]
    if not all(map(_are_calls, given)):
        at = next(at for at, message in enumerate(messages) if not _are_calls(message.get("tool_calls") or []))
        where = f"messages[{at}].tool_calls"
        raise bad_field(where, f"{where} must be a list of {{id, type: 'function', function: {{name, arguments}}}}")


def _are_calls(calls: Any) -> bool:
    return type(calls) is list and all(map(_is_call, calls))


def _is_call(call: Any) -> bool:
    return type(call) is dict and type(call.get("id")) in TEXT_OR_NONE


def _tools(body: Mapping[str, Any], count: fields.Count) -> tuple[Tools | None, str, frozenset[str]]:
    """Read the tools for the template, TurnRequest.forced, and the names of custom tools."""
    given = fields.objects(body, "tools")
    shown: list[dict[str, Any]] = []
    customs: set[str] = set()
    for at, tool in enumerate(given):
        function, custom = tool.get("function"), tool.get("custom")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            shown.append(tool)
        elif tool.get("type") == "custom" and isinstance(custom, dict):
            shown.append(custom_tool(custom, f"tools[{at}].custom", count))
            customs.add(custom["name"])
        elif not hosted(tool, count):
            raise bad_field(
                f"tools[{at}]",
                f"tools[{at}] must be {{type: 'function', function: {{name, ...}}}} or "
                "{type: 'custom', custom: {name, ...}}",
            )
    tools = Tools(shown) if shown else None
    choice = body.get("tool_choice")
    if choice in (None, "auto"):
        return tools, "", frozenset(customs)
    if choice == "none":
        return None, "", frozenset()
    named = (choice.get("function") or choice.get("custom")) if isinstance(choice, dict) else None
    forced = forced_tool(choice, named.get("name") if isinstance(named, dict) else None, tools)
    return tools, forced, frozenset(customs)

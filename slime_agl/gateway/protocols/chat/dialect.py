"""OpenAI's chat completions protocol: what a request may say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_agl.gateway.protocols import fields
from slime_agl.gateway.protocols.chat.answers import ChatExchange
from slime_agl.gateway.protocols.logprobs import TokenBytes
from slime_agl.gateway.protocols.protocol import event, openai_error
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.request import ANY_TOOL, TurnRequest
from slime_agl.gateway.sessions.session import Session
from slime_agl.gateway.turn.begun import split_begun

MOST_ANSWERS = 128
MOST_ALTERNATIVES = 20

# Of vLLM's and SGLang's servers; they place, log or format, and the answer stays the same.
ENGINE_BOOKKEEPING = {"rid", "session_id", "cache_salt", "priority", "skip_special_tokens"}
FIELDS = fields.Table(
    honoured=frozenset(
        {"messages", "model", "tools", "tool_choice", "parallel_tool_calls", "max_tokens", "max_completion_tokens"}
        | {"n", "stop", "stop_token_ids", "stream", "stream_options", "logprobs", "top_logprobs", "response_format"}
        | {
            "add_generation_prompt",
            "continue_final_message",
            "regex",
            "ebnf",
            "chat_template_kwargs",
            "enable_thinking",
            "reasoning_effort",
            "return_token_ids",
        }
        | fields.SAMPLING.keys()
    ),
    ignored=fields.BOOKKEEPING | ENGINE_BOOKKEEPING | {"prediction"},
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
    """The dialect. model: the name used when a request gives none. token_bytes: the bytes of each id, for logprobs."""

    def __init__(self, model: str, token_bytes: TokenBytes) -> None:
        self._model, self._token_bytes = model, token_bytes

    def read(self, body: Any, session: Session) -> ChatExchange:
        body = FIELDS.check(body)
        messages = fields.objects(body, "messages")
        if not messages:
            raise bad_field("messages", "messages must be a non-empty list of objects")
        _check_calls(messages)
        messages, begun = split_begun(body, messages)
        tools, forced = _tools(body)
        if forced and begun is not None:
            raise bad_field(
                "tool_choice", f"tool_choice {body['tool_choice']!r} begins an answer, as the last message does"
            )
        options = fields.mapping(body, "stream_options")
        alternatives = fields.count(body, "top_logprobs", least=0, most=MOST_ALTERNATIVES)
        if alternatives is not None and not body.get("logprobs"):
            raise bad_field("top_logprobs", "top_logprobs asks for alternatives of `logprobs`, so send logprobs: true")
        request = TurnRequest(
            messages=messages,
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
            begun=begun,
        )
        return ChatExchange(
            request=request,
            token_bytes=self._token_bytes,
            stream=bool(body.get("stream")),
            include_usage=bool(options.get("include_usage")),
            logprobs=bool(body.get("logprobs")),
        )

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return openai_error(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        return event(openai_error(refusal))


def forced_tool(choice: Any, name: Any, tools: list[dict[str, Any]] | None) -> str:
    """TurnRequest.forced for a choice that is neither auto nor none; `name`: the tool it names, if it does.

    Raises:
        Refusal: there is no such tool, or the choice is of an unknown kind.
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


def _check_calls(messages: list[dict[str, Any]]) -> None:
    for at, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls and not (isinstance(calls, list) and all(map(_is_call, calls))):
            where = f"messages[{at}].tool_calls"
            raise bad_field(where, f"{where} must be a list of {{id, type: 'function', function: {{name, arguments}}}}")


def _is_call(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("id"), str | None)


def _tools(body: Mapping[str, Any]) -> tuple[list[dict[str, Any]] | None, str]:
    """The tools that the template is to show, and TurnRequest.forced."""
    tools = fields.objects(body, "tools") or None
    for at, tool in enumerate(tools or ()):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_field(f"tools[{at}]", f"tools[{at}] must be {{type: 'function', function: {{name, ...}}}}")
    choice = body.get("tool_choice")
    if choice in (None, "auto"):
        return tools, ""
    if choice == "none":
        return None, ""
    function = choice.get("function") if isinstance(choice, dict) else None
    return tools, forced_tool(choice, function.get("name") if isinstance(function, dict) else None, tools)

"""OpenAI's chat completions protocol: how an answer is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slime_agl.chat.template.messages import wire_message
from slime_agl.gateway.protocols.logprobs import TokenBytes, chat_logprobs
from slime_agl.gateway.protocols.protocol import event
from slime_agl.gateway.request import Answer, TurnRequest, Usage
from slime_agl.trace.turn import LENGTH

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ChatExchange:
    """One request. include_usage: in the last event of a stream. logprobs: of every sampled token."""

    request: TurnRequest
    token_bytes: TokenBytes
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False

    @property
    def turns(self) -> tuple[TurnRequest, ...]:
        return (self.request,)

    def body(self, answers: list[Answer]) -> dict[str, Any]:
        """The body of a chat.completion."""
        choices = []
        for number, answer in enumerate(answers):
            choice = {"index": number, "message": message_of(answer), "finish_reason": finish_reason(answer)}
            choices.append(choice | {"logprobs": self._logprobs(answer)} | self._ids(answer))
        head = self._head(answers, "chat.completion")
        return {**head, "choices": choices, "usage": usage_of(Usage.of(answers, self.request.n))}

    def events(self, answers: list[Answer]) -> Iterator[bytes]:
        """The chat.completion.chunk events."""
        for chunk in self._chunks(answers):
            yield event(chunk)
        yield DONE

    def _chunks(self, answers: list[Answer]) -> Iterator[dict[str, Any]]:
        head = self._head(answers, "chat.completion.chunk")
        for number, answer in enumerate(answers):
            message = message_of(answer)
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

    def _head(self, answers: list[Answer], kind: str) -> dict[str, Any]:
        turn = answers[0].turn
        head = {"id": turn.turn_id, "object": kind, "created": int(turn.ended), "model": self.request.model}
        if answers[0].prompt_ids is not None:
            head["prompt_token_ids"] = answers[0].prompt_ids.tolist()
        return head

    def _logprobs(self, answer: Answer) -> dict[str, Any] | None:
        return {"content": chat_logprobs(answer.turn, self.token_bytes)} if self.logprobs else None

    def _ids(self, answer: Answer) -> dict[str, Any]:
        return {"token_ids": answer.turn.output_ids().tolist()} if self.request.return_ids else {}


def message_of(answer: Answer) -> dict[str, Any]:
    """The assistant message of an answer."""
    return wire_message(answer.reply)


def finish_reason(answer: Answer) -> str:
    if answer.reply.tool_calls:
        return "tool_calls"
    return "length" if answer.turn.finish == LENGTH else "stop"


def usage_of(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object of the completions protocols."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }

"""OpenAI's legacy completions protocol, for agents that render their own prompts as text or token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from slime_agl.gateway.protocols import fields
from slime_agl.gateway.protocols.chat import DONE, ENGINE_BOOKKEEPING, MOST_ANSWERS, Usage, usage_of
from slime_agl.gateway.protocols.logprobs import completion_logprobs
from slime_agl.gateway.protocols.protocol import event, openai_error
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.repeats import Frame
from slime_agl.gateway.request import TurnAnswer, TurnRequest
from slime_agl.gateway.sessions.session import Session
from slime_agl.trace.turn import LENGTH

MOST_ALTERNATIVES = 20
DEFAULT_MAX_TOKENS = 16
FIELDS = fields.Table(
    honoured=frozenset(
        {"prompt", "model", "max_tokens", "n", "best_of", "stop", "stop_token_ids", "stream", "stream_options"}
        | {"logprobs", "echo", "add_special_tokens", "response_format", "regex", "ebnf", "return_token_ids"}
        | fields.SAMPLING.keys()
    ),
    ignored={**fields.BOOKKEEPING, **ENGINE_BOOKKEEPING},
    fixed={"logit_bias": ({},), "ignore_eos": (False,), "include_stop_str_in_output": (False,)},
    refused={"suffix": "the trained model continues a text, it does not fill gaps"},
)


class Completions:
    """The completions dialect. model: default model name. decode: ids to text."""

    array = ""

    def __init__(self, model: str, decode: Callable[[list[int]], str]) -> None:
        self._model, self._decode = model, decode

    def read(self, body: object, session: Session, frame: Frame | None = None) -> CompletionExchange:
        body = FIELDS.check(body, session.count)
        n = fields.count(body, "n", most=MOST_ANSWERS) or 1
        if (fields.count(body, "best_of") or n) != n:
            raise bad_field(
                "best_of", f"best_of is {body['best_of']}, n is {n}; an answer that is not returned cannot train"
            )
        logprobs = fields.count(body, "logprobs", least=0, most=MOST_ALTERNATIVES)
        if logprobs is not None and body.get("echo"):
            raise bad_field("echo", "echo with logprobs asks for logprobs of the prompt, which are not available")
        options = fields.mapping(body, "stream_options")
        turns = tuple(
            TurnRequest(
                messages=[
                    {"role": "user", "content": prompt if isinstance(prompt, str) else self._decode(list(prompt))}
                ],
                prompt=prompt,
                add_special_tokens=body.get("add_special_tokens") is not False,
                model=fields.model(body, self._model),
                max_tokens=fields.count(body, "max_tokens") or DEFAULT_MAX_TOKENS,
                stop=fields.stops(body),
                stop_ids=fields.ids(body.get("stop_token_ids", []), "stop_token_ids"),
                sampling=fields.sampling(body),
                constraint=fields.constraint(body.get("response_format"), "response_format") | fields.grammar(body),
                extra=fields.top_logprobs(logprobs),
                n=n,
                id_prefix="cmpl-",
                return_ids=bool(body.get("return_token_ids")),
            )
            for prompt in _prompts(body)
        )
        return CompletionExchange(
            turns=turns,
            decode=self._decode,
            stream=bool(body.get("stream")),
            include_usage=bool(options.get("include_usage")),
            logprobs=logprobs is not None,
            echo=bool(body.get("echo")),
        )

    def error(self, refusal: Refusal) -> dict[str, Any]:
        return openai_error(refusal)

    def error_event(self, refusal: Refusal) -> bytes:
        return event(openai_error(refusal))


class CompletionExchange(Struct, frozen=True, kw_only=True):
    """A request: one turn per prompt."""

    turns: tuple[TurnRequest, ...]
    decode: Callable[[list[int]], str]
    stream: bool
    include_usage: bool
    logprobs: bool
    echo: bool

    def body(self, answers: list[TurnAnswer]) -> dict[str, Any]:
        """The text_completion object; choices in the order of prompts, n per prompt."""
        return {**self._head(answers), "choices": self._choices(answers), "usage": self._usage(answers)}

    def events(self, answers: list[TurnAnswer]) -> Iterator[bytes]:
        head = self._head(answers)
        for choice in self._choices(answers):
            yield event(head | {"choices": [choice]})
        if self.include_usage:
            yield event(head | {"choices": [], "usage": self._usage(answers)})
        yield DONE

    def _choices(self, answers: list[TurnAnswer]) -> list[dict[str, Any]]:
        return [self._choice(number, answer) for number, answer in enumerate(answers)]

    def _choice(self, number: int, answer: TurnAnswer) -> dict[str, Any]:
        asked = self.turns[number // self.turns[0].n].messages[0]["content"] if self.echo else ""
        choice = {
            "index": number,
            "text": asked + answer.reply.text,
            "finish_reason": "length" if answer.turn.finish == LENGTH else "stop",
            "logprobs": completion_logprobs(answer.turn, self.decode, len(asked)) if self.logprobs else None,
        }
        if answer.prompt_ids is not None:
            choice["prompt_token_ids"] = answer.prompt_ids.tolist()
            choice["token_ids"] = answer.turn.output_ids().tolist()
        return choice

    def _head(self, answers: list[TurnAnswer]) -> dict[str, Any]:
        turn = answers[0].turn
        return {"id": turn.turn_id, "object": "text_completion", "created": int(turn.ended), "model": turn.model}

    def _usage(self, answers: list[TurnAnswer]) -> dict[str, Any]:
        return usage_of(Usage.of(answers, self.turns[0].n))


def _prompts(body: Mapping[str, Any]) -> list[str | tuple[int, ...]]:
    """Read the prompts: a text, a list of texts, a list of ids, or a list of lists of ids."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise bad_field("prompt", "prompt must be a text, token ids, or a non-empty list of either")
    if isinstance(prompt[0], int):
        return [fields.ids(prompt, "prompt")]
    return [item if isinstance(item, str) else fields.ids(item, f"prompt[{at}]") for at, item in enumerate(prompt)]

"""Convert scripted answers to token ids, logprobs and a finish reason.

>>> shaped = shape(Answer("hi"), tiny_tokenizer(), {"max_new_tokens": 2}, prompt_length=7)
>>> shaped.finish, shaped.ids
('length', (71, 72))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import cast

from transformers import PreTrainedTokenizerBase

STOP, LENGTH, ABORT = "stop", "length", "abort"


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted answer: `text`, or exact `ids`.

    finish: 'stop' or 'length'. matched: the stop string or stop id that ended it; None means the tokenizer's EOS.
    With finish 'stop', the stop id is appended to `text`, unless `matched` is a string, which `text` already contains.
    meta: further fields for `meta_info`, such as routed_experts.

        >>> Answer("4 + 4 = 8")
        >>> Answer("I was cut off he", finish="length")
        >>> Answer(ids=[72, 73, 281])
    """

    text: str | None = None
    _: KW_ONLY
    ids: Sequence[int] | None = None
    finish: str = STOP
    matched: int | str | None = None
    meta: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.text is None) == (self.ids is None):
            raise ValueError(f"an answer needs either text or ids, got text={self.text!r} and ids={self.ids!r}")
        if self.finish not in (STOP, LENGTH):
            raise ValueError(f"finish is {self.finish!r}, it must be 'stop' or 'length'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaped:
    """The answer as sent: ids, one logprob per id, and the finish reason."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    matched: int | str | None = None
    meta: Mapping[str, object] = field(default_factory=dict)

    def first(self, count: int) -> Shaped:
        """Return the partial answer of an aborted request."""
        return Shaped(ids=self.ids[:count], logprobs=self.logprobs[:count], finish=ABORT, meta=self.meta)

    def after(self, count: int) -> Shaped:
        """Return the rest after `first(count)`."""
        return replace(self, ids=self.ids[count:], logprobs=self.logprobs[count:])


def pseudo_logprob(token: int, position: int) -> float:
    """Return a log probability between -3 and 0 that depends only on the token and its position in the sequence."""
    return -3.0 * ((token * 2654435761 + position * 40503 + 7) % 65521 + 1) / 65522


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    text = tokenizer.decode(list(ids))
    assert isinstance(text, str)  # a list only for a batch
    return text


def shape(answer: Answer, tokenizer: PreTrainedTokenizerBase, params: Mapping, *, prompt_length: int) -> Shaped:
    """Convert an answer to tokens, ended early by stop strings, stop ids and max_new_tokens as in SGLang.

    Exact ids are only ever shortened, so a non-canonical tokenization can be scripted.
    """
    eos = cast("int | None", tokenizer.eos_token_id)
    if answer.ids is not None:
        ids, matched = list(answer.ids), answer.matched
        if matched is None and answer.finish == STOP and ids and ids[-1] == eos:
            matched = eos
    else:
        ids, matched = tokenizer.encode(answer.text or "", add_special_tokens=False), answer.matched
        if answer.finish == STOP and not isinstance(matched, str):
            matched = eos if matched is None else matched
            ids += [] if matched is None else [matched]
    finish = answer.finish
    if (end := _stopped(ids, tokenizer, params)) is not None:
        ids, finish, matched = ids[: end[0]], STOP, end[1]
    limit = params.get("max_new_tokens")
    if limit is not None and len(ids) > limit:
        ids, finish, matched = ids[:limit], LENGTH, None
    logprobs = tuple(pseudo_logprob(token, prompt_length + at) for at, token in enumerate(ids))
    return Shaped(
        ids=tuple(ids), logprobs=logprobs, finish=finish, matched=matched if finish == STOP else None, meta=answer.meta
    )


def _stopped(ids: list[int], tokenizer: PreTrainedTokenizerBase, params: Mapping) -> tuple[int, int | str] | None:
    """Apply the request's own stops: return the number of ids to keep and the match, or None."""
    stop_ids = set(params.get("stop_token_ids") or ())
    stops = params.get("stop") or ()
    stops = [stops] if isinstance(stops, str) else list(stops)
    if not stop_ids and not stops:
        return None
    for at, token in enumerate(ids):
        if token in stop_ids:
            return at + 1, token
        text = decode(tokenizer, ids[: at + 1]) if stops else ""
        if found := next((stop for stop in stops if stop in text), None):
            return at + 1, found
    return None

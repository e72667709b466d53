"""One engine answer, as it was sampled.

Ids and logprobs are held as compact arrays (4 and 8 bytes an entry); a turn
holds only what is new since the turn it continues, so an attempt costs what it
sampled, not the square of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slime_agl.errors import InvariantError
from slime_agl.trace.replay import Experts, TopP

STOP, LENGTH, ABORT = "stop", "length", "abort"


def token_array(ids: Iterable[int]) -> array:
    """Pack token ids into a signed 32 bit array. Raises OverflowError beyond 2**31 - 1."""
    return ids if isinstance(ids, array) and ids.typecode == "i" else array("i", ids)


def logprob_array(values: Iterable[float]) -> array:
    """Pack log probabilities into a float64 array, so that they stay what the engine wrote."""
    return values if isinstance(values, array) and values.typecode == "d" else array("d", values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The tokens of one `/generate` answer. A turn that an abort cut has several, in order.

    ids, logprobs: the sampled tokens and log p of each under the sampling distribution.
    finish: 'stop', 'length' or 'abort'; matched: the stop id or string that ended it.
    prompt_tokens, cached_tokens: what the engine says it was shown, and had in its prefix cache.
    weight_version: version of the weights that sampled these tokens, '' when not reported.
    latency: seconds from request to answer. meta: further small fields of the engine's answer.
    experts: routed experts of the tokens up to the last but one that no earlier answer of the sequence covers.
    top_p: the set each of the tokens was sampled from. Both None unless they were asked for.
    """

    ids: array
    logprobs: array
    finish: str
    matched: int | str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    weight_version: str = ""
    latency: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=dict)
    experts: Experts | None = None
    top_p: TopP | None = None

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise InvariantError(
                f"engine answer has {len(self.ids)} token ids but {len(self.logprobs)} logprobs; "
                "the engine must be asked with return_logprob and answer one logprob per token"
            )
        if self.top_p is not None and self.top_p.tokens != len(self.ids):
            raise InvariantError(
                f"engine answer has top-p sets of {self.top_p.tokens} tokens for {len(self.ids)} tokens"
            )


@dataclass(frozen=True, slots=True)
class Media:
    """Images among new tokens. text: as rendered, one placeholder an image; images: data URLs, as the engine gets them."""

    text: str
    images: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A committed turn.

    index: position in the attempt's commit order. parent: index of the turn it continues, or None.
    new_ids: tokens the engine was shown beyond the parent's prompt and output
        (the whole prompt when there is no parent). They are prompt or glue, never trained.
    parts: what was sampled. turn_id: the response id the agent was given.
    fork: why this turn does not continue an earlier one, or branches off ('' when it simply goes on).
    untrained: why its tokens must not be trained ('' when they may be).
    model: model name the agent asked for. started, ended: seconds since the epoch.
    media: the images that `new_ids` show, None without any.
    """

    index: int
    parent: int | None
    new_ids: array
    parts: tuple[Sampled, ...]
    turn_id: str
    fork: str = ""
    untrained: str = ""
    model: str = ""
    started: float = 0.0
    ended: float = 0.0
    engine_seconds: float = 0.0
    media: Media | None = None

    @property
    def output_length(self) -> int:
        return sum(len(part.ids) for part in self.parts)

    @property
    def finish(self) -> str:
        return self.parts[-1].finish if self.parts else ABORT

    @property
    def matched(self) -> int | str | None:
        return self.parts[-1].matched if self.parts else None

    def output_ids(self) -> array:
        """All sampled ids of the turn, in order. A new array unless there is one part."""
        return _joined("i", [part.ids for part in self.parts])

    def output_logprobs(self) -> array:
        return _joined("d", [part.logprobs for part in self.parts])


def _joined(typecode: str, arrays: list[array]) -> array:
    if len(arrays) == 1:
        return arrays[0]
    out = array(typecode)
    for piece in arrays:
        out.extend(piece)
    return out

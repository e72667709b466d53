"""Turns: engine answers exactly as sampled.

Ids and logprobs are stored in compact arrays (4 and 8 bytes per entry). A turn stores only what is new since its
parent, so the memory of an attempt is linear in its tokens instead of quadratic.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from slime_agl.errors import InvariantError
from slime_agl.trace.replay import Experts, TopP

__all__ = ["Sampled", "Turn"]

STOP, LENGTH, ABORT = "stop", "length", "abort"
# Leads the reason of a turn that its agent received, but that is not chosen to train.
SKIPPED = "skipped_"
# Attribute of a turn's span that names the turn.
TURN_INDEX = "slime_agl.turn.index"


def token_array(ids: Iterable[int]) -> array:
    """Pack token ids into a signed 32-bit array. Raises OverflowError beyond 2**31 - 1."""
    return ids if isinstance(ids, array) and ids.typecode == "i" else array("i", ids)


def logprob_array(values: Iterable[float]) -> array:
    """Pack log probabilities into a float64 array, which keeps them exactly as the engine wrote them."""
    return values if isinstance(values, array) and values.typecode == "d" else array("d", values)


class Sampled(Struct, frozen=True, kw_only=True):
    """The tokens of one `/generate` answer. A turn interrupted by aborts has several, in order.

    ids, logprobs: sampled tokens and the log p of each under the sampling distribution.
    finish: 'stop', 'length' or 'abort'. matched: the stop id or string that ended it.
    prompt_tokens, cached_tokens: prompt length and prefix cache hits, as the engine reports them.
    weight_version: version of the weights that sampled these tokens, '' if not reported.
    latency: seconds from request to answer. meta: further small fields of the answer.
    experts: routed experts of the tokens that no earlier answer of the sequence covers, up to the last but one.
    top_p: the set that each token was sampled from. Both None unless requested.
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


class Media(Struct, frozen=True):
    """Images among new tokens. text: rendered, one placeholder per image. images: data URLs, as sent to the engine."""

    text: str
    images: tuple[str, ...]


class Turn(Struct, frozen=True, kw_only=True):
    """A committed turn.

    index: position in the attempt's commit order. parent: index of the turn it continues, or None.
    new_ids: prompt tokens after the parent's prompt and output (the whole prompt without a parent). They are prompt or
        glue, and never train.
    parts: the sampled tokens. turn_id: the response id sent to the agent.
    fork: why this turn branches off or does not continue an earlier one, '' if it simply continues.
    untrained: why its tokens must not train, '' if they may.
    model: model name the agent asked for. started, ended: seconds since the epoch.
    media: images among `new_ids`, None if there are none.
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
    def received(self) -> bool:
        """True if the agent received the answer, so that a later turn may continue it, whether or not it trains."""
        return not self.untrained or self.untrained.startswith(SKIPPED)

    @property
    def output_length(self) -> int:
        return len(self.parts[0].ids) if len(self.parts) == 1 else sum(len(part.ids) for part in self.parts)

    @property
    def finish(self) -> str:
        return self.parts[-1].finish if self.parts else ABORT

    @property
    def matched(self) -> int | str | None:
        return self.parts[-1].matched if self.parts else None

    def output_ids(self) -> array:
        """All sampled ids of the turn, in order. A new array unless there is one part."""
        return self.parts[0].ids if len(self.parts) == 1 else _joined("i", [part.ids for part in self.parts])

    def output_logprobs(self) -> array:
        return self.parts[0].logprobs if len(self.parts) == 1 else _joined("d", [part.logprobs for part in self.parts])


def _joined(typecode: str, arrays: list[array]) -> array:
    out = array(typecode)
    for piece in arrays:
        out.extend(piece)
    return out

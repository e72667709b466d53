"""Credit for each turn inside a Sample, and the advantages that a group gives its turns.

A worked example, with `agl.credit: {mode: per_turn, span: turn}` and a discount of 1. Two executions of one group, each
one Sample of two turns of ten trained tokens; the agent emits a reward after each turn:

    execution    rewards     returns     trained tokens    value in the baseline
    0            0.5, 1.0    1.5, 1.0    10, 10            1.25
    1            0.0, 0.0    0.0, 0.0    10, 10            0.0

The baseline is 0.625, and the advantages of the turns (without a standard deviation) are 0.875, 0.375, -0.625 and
-0.625: a turn is judged by what was earned from it on, and an execution counts once, whatever its turns.

Under `baseline: state` a turn gets its execution's advantage by what that earned in all, plus the weighted advantage of
its return over those of the group's turns that answered the same prompt: group-in-group (GiGPO,
https://arxiv.org/abs/2505.10978), with the prompt's tokens as the anchor state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from slime_agl.credit.emitted import Emitted
from slime_agl.credit.per_turn import place_of, turn_returns
from slime_agl.errors import InvariantError
from slime_agl.trace.segments import Segment
from slime_agl.trace.turn import Turn

# Where a Sample's metadata["agl"] carries its turns.
KEY = "credit"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCredit:
    """The credit of one trained turn of a Sample.

    start, end: of its tokens, in the Sample's response. value: what a baseline is taken from, such as the return.
    reward: what the turn itself earned, for estimators that sum rewards themselves; over the turns of a Sample the
    rewards add up to the first one's undiscounted return. state: names the prompt that the turn answered. total: what
    the whole execution earned.
    """

    start: int
    end: int
    value: float
    reward: float
    state: str = ""
    total: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise InvariantError(f"a turn's credit covers tokens {self.start} to {self.end} of its response")

    def packed(self) -> list[Any]:
        return [self.start, self.end, self.value, self.reward, self.state, self.total]


def unpacked(metadata: Mapping[str, Any] | None) -> list[TurnCredit]:
    """The turns of a Sample by its metadata; empty without any."""
    rows = ((metadata or {}).get("agl") or {}).get(KEY) or ()
    return [
        TurnCredit(start=start, end=end, value=value, reward=reward, state=state, total=total)
        for start, end, value, reward, state, total in rows
    ]


def earned(emitted: Sequence[Emitted], worth: Sequence[float], segments: Sequence[Segment]) -> dict[int, float]:
    """Sum the rewards of each trained turn, by index.

    worth: the value of each of `emitted`; `per_turn.place_of` says which turn it belongs to.
    """
    trained = sorted({index for segment in segments for index in segment.trained})
    total = dict.fromkeys(trained, 0.0)
    for item, value in zip(emitted, worth, strict=True):
        total[trained[place_of(item, trained)]] += value
    return total


def by_returns(rewards: Mapping[int, float], segment: Segment, *, discount: float) -> list[TurnCredit]:
    """Credit of a segment's trained turns by discounted returns over all trained turns of the execution.

    rewards: of each trained turn, see `earned`. A turn's `reward` is what was earned between it and the segment's next
    trained turn, undiscounted, turns of other segments included; the last turn's includes all that came later.
    """
    order = sorted(rewards)
    values = dict(zip(order, turn_returns([rewards[at] for at in order], discount), strict=True))
    plain = dict(zip(order, turn_returns([rewards[at] for at in order], 1.0), strict=True))
    spans = _spans(segment)
    following = [plain[after.index] for _, (after, _, _) in pairwise(spans)] + [0.0]
    return [
        TurnCredit(
            start=start,
            end=end,
            value=values[turn.index],
            reward=plain[turn.index] - later,
            state=_state(segment, turn),
            total=plain[order[0]],
        )
        for (turn, start, end), later in zip(spans, following, strict=True)
    ]


def as_given(credit: Mapping[int, float], segment: Segment) -> list[TurnCredit]:
    """Credit of a segment's trained turns as a function gave it, by the turn's index; 0 for a turn it left out."""
    total = sum(credit.values())
    return [
        TurnCredit(start=start, end=end, value=given, reward=given, state=_state(segment, turn), total=total)
        for turn, start, end in _spans(segment)
        for given in [credit.get(turn.index, 0.0)]
    ]


def _spans(segment: Segment) -> list[tuple[Turn, int, int]]:
    """Each trained turn with the place of its tokens in the response, which starts at the first of them."""
    out = []
    at = -len(segment.turns[segment.first_trained].new_ids)  # the prompt of the first is not in the response
    for turn in segment.turns[segment.first_trained :]:
        at += len(turn.new_ids)
        if turn.index in segment.trained:
            out.append((turn, at, at + turn.output_length))
        at += turn.output_length
    return out


def _state(segment: Segment, turn: Turn) -> str:
    """Name a turn's prompt by its tokens."""
    digest = hashlib.blake2b(digest_size=12)
    for before in segment.turns:
        digest.update(before.new_ids.tobytes())
        if before is turn:
            break
        for part in before.parts:
            digest.update(part.ids.tobytes())
    return digest.hexdigest()


def relative_to_state(
    states: Sequence[tuple[Hashable, str]], values: Sequence[float], *, scale: bool, least_std: float
) -> list[float]:
    """Advantage of each turn over the turns of its group with the same prompt; 0 for a turn that is alone.

    states: group and state of each turn. scale: divide by the standard deviation (unbiased) + least_std.
    """
    members: dict[tuple[Hashable, str], list[int]] = {}
    for at, state in enumerate(states):
        members.setdefault(state, []).append(at)
    out = [0.0] * len(values)
    for alike in members.values():
        if len(alike) < 2:
            continue
        mean = sum(values[at] for at in alike) / len(alike)
        spread = (sum((values[at] - mean) ** 2 for at in alike) / (len(alike) - 1)) ** 0.5
        for at in alike:
            out[at] = (values[at] - mean) / (spread + least_std) if scale else values[at] - mean
    return out

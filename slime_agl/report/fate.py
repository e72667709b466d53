"""Whether each token of a recorded execution trained, and why not."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from slime_agl.errors import RecordError
from slime_agl.record.run import RecordedExecution, RecordedSample
from slime_agl.trace.segments import Segment
from slime_agl.trace.turn import Turn


@dataclass(frozen=True, slots=True)
class TurnFate:
    """trained: a 0 or 1 per output token. why: the reason if none trains, else ''."""

    turn: Turn
    trained: array
    why: str


def fates(execution: RecordedExecution) -> list[TurnFate]:
    """Return the fate of every output token per turn, from the masks of the recorded Samples.

    Raises:
        RecordError: a mask and the response of its segment differ in length.
    """
    trained = {turn.index: array("b", bytes(turn.output_length)) for turn in execution.ledger.turns}
    parts = execution.segments
    for sample in execution.samples:
        if sample.segment < len(parts) and not sample.removed and not execution.unused:
            for turn, marks in _marks(execution, parts[sample.segment], sample):
                mine = trained[turn.index]
                trained[turn.index] = array("b", [a | b for a, b in zip(mine, marks, strict=True)])
    return [
        TurnFate(turn, trained[turn.index], "" if any(trained[turn.index]) else _why(execution, turn))
        for turn in execution.ledger.turns
    ]


def untrained(execution: RecordedExecution) -> Counter[str]:
    """Count sampled tokens that do not train, by reason."""
    counts: Counter[str] = Counter()
    for fate in fates(execution):
        missing = len(fate.trained) - sum(fate.trained)
        if missing:
            counts[fate.why or "masked"] += missing
    return counts


def _marks(execution: RecordedExecution, segment: Segment, sample: RecordedSample) -> Iterator[tuple[Turn, array]]:
    at = 0
    first = segment.first_trained
    expected = sum(turn.output_length + (n > first) * len(turn.new_ids) for n, turn in _numbered(segment, first))
    if len(sample.mask) != expected:
        raise RecordError(
            f"{execution.ledger}: the mask of sample {sample.index} has {len(sample.mask)} entries, "
            f"its segment has a response of {expected} tokens"
        )
    for n, turn in _numbered(segment, first):
        at += len(turn.new_ids) if n > first else 0
        yield turn, sample.mask[at : at + turn.output_length]
        at += turn.output_length


def _numbered(segment: Segment, first: int) -> list[tuple[int, Turn]]:
    return list(enumerate(segment.turns))[first:]


def _why(execution: RecordedExecution, turn: Turn) -> str:
    if not turn.output_length:
        return "nothing sampled"
    return turn.untrained or execution.unused or execution.failure or "masked"

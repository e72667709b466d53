"""Executions built by hand, for credit."""

from __future__ import annotations

from collections.abc import Sequence

from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import Segment, segments
from slime_agl.trace.turn import Sampled, Turn, logprob_array, token_array


def execution(*turns: tuple[int | None, str] | tuple[int | None, str, str]) -> tuple[Segment, ...]:
    """Make the segments of an execution; a turn is (parent, model[, why it does not train])."""
    ledger = Ledger("ro", "at")
    for index, (parent, model, *untrained) in enumerate(turns):
        part = Sampled(ids=token_array([7, 8]), logprobs=logprob_array([-1.0, -1.0]), finish="stop")
        ledger.commit(
            Turn(
                index=index,
                parent=parent,
                new_ids=token_array([1]),
                parts=(part,),
                turn_id=f"t{index}",
                model=model,
                untrained="".join(untrained),
            )
        )
    return segments(ledger)


def turns_of(parts: Sequence[Segment]) -> list[list[int]]:
    return [sorted(part.trained) for part in parts]

"""Hand-made recorded executions. Token ids: 1, 2, ... say tok0, tok1, ...; the last of a turn is END_ID."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from slime_agl.record.run import Record, RecordedExecution, RecordedSample
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Sampled, Turn

ASK_ID, END_ID, END = 900, 901, "<end>"
TEXTS = {ASK_ID: b"ask ", END_ID: END.encode(), **{n + 1: f"tok{n}".encode() for n in range(256)}}


def run_of(*executions: RecordedExecution, name: str = "step-000000") -> Record:
    return Record(
        path=Path(f"/run/{name}.jsonl"),
        header={"step": 0, "checkpoint": ""},
        tokens=TEXTS,
        executions=tuple(executions),
    )


def made(
    rollout_id: str = "ro-0",
    *,
    output: int = 3,
    masked_turns: int = 0,
    versions: tuple[str, ...] = ("1",),
    fork: str = "",
    **facts: Any,
) -> RecordedExecution:
    """A chain of 1 + `masked_turns` turns of `output` tokens, the first one trained. Turns take `versions` in turn.

    facts: of the execution.
    """
    ledger = Ledger(rollout_id, "at-0")
    for index in range(1 + masked_turns):
        ids = [*(n % 256 + 1 for n in range(output - 1)), END_ID]
        part = Sampled(
            ids=array("i", ids),
            logprobs=array("d", [-0.5 * (n + 1) for n in range(output)]),
            finish="stop",
            weight_version=versions[index % len(versions)],
        )
        ledger.commit(
            Turn(
                index=index,
                parent=index - 1 if index else None,
                new_ids=array("i", [ASK_ID]),
                parts=(part,),
                turn_id=f"turn-{index}",
                fork=fork,
            )
        )
    mask = [int(not facts.get("failure"))] * output + ([0] * (1 + output)) * masked_turns
    sample = RecordedSample(
        index=0,
        group_index=0,
        rollout_id=0,
        segment=0,
        status="completed",
        reward=facts.get("reward", 1.0),
        mask=array("b", mask),
        removed=bool(facts.get("failure")),
    )
    return RecordedExecution(ledger=ledger, **{"task": "a task", "reward": 1.0, "samples": (sample,), **facts})

"""Detect whether a run could reveal an answer that was re-encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slime_agl.record.run import RecordedExecution
from slime_agl.report.checks import Finding

NAME = "encoding again would show"
MORE = "run more rows or samples, at a higher temperature"

Recode = Callable[[Sequence[int]], Sequence[int]]


def look_at_re_encoding(executions: Sequence[RecordedExecution], recode: Recode) -> Finding:
    """Judge whether the run can prove that no answer was re-encoded: only ids that `recode` changes can.

    recode: decodes ids and re-encodes the text.
    """
    continued = [
        list(ledger.turns[index].output_ids())
        for ledger in (execution.ledger for execution in executions)
        for index in {turn.parent for turn in ledger.turns if turn.parent is not None}
    ]
    if not continued:
        words = "no turn went on from an earlier one, so no answer could have been encoded again"
        return Finding(NAME, "look", f"{words}; give it rows on which the agent makes several turns")
    odd = sum(list(recode(ids)) != ids for ids in continued)
    if not odd:
        words = f"all {len(continued)} answers that a turn went on from are encoded as the tokenizer would"
        return Finding(NAME, "look", f"{words}, so this run cannot tell; {MORE}")
    words = f"{odd} of {len(continued)} answers that a turn went on from have other ids than their text encodes to"
    return Finding(NAME, "pass", words)

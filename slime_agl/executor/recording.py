"""The recorded form of an execution. Its tokens and messages may be in a worker while its Samples are not."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from slime_agl.credit.turns import KEY
from slime_agl.execution import Execution
from slime_agl.host import Sample
from slime_agl.record.run import RecordedCredit, RecordedExecution, RecordedSample

LONGEST_ATTRIBUTE = 2000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Samples of an execution as they were delivered or dropped. row: of the data source, or None.

    dataset: the eval dataset of the row, '' in training. unused: why they were not delivered, '' if they were.
    """

    reward: Any
    samples: tuple[RecordedSample, ...]
    row: dict[str, object] | None
    dataset: str = ""
    unused: str = ""


def verdict(
    samples: Sequence[Sample], *, with_row: bool, dataset: str = "", prompt: int | None = None, unused: str = ""
) -> Verdict:
    """samples: those of one execution, scored or not. with_row: include the data row.

    dataset, prompt: in an evaluation, the dataset and the number of the row in it, which is recorded as the group.
    """
    told = tuple(map(_sample, samples))
    if prompt is not None:
        told = tuple(replace(one, group_index=prompt) for one in told)
    return Verdict(samples[0].reward, told, _row(samples[0]) if with_row else None, dataset, unused)


def recorded(execution: Execution, found: Verdict) -> RecordedExecution:
    started = min((turn.started for turn in execution.ledger.turns), default=0.0)
    started = min([started, *(span.start_time for span in execution.spans if span.start_time)])
    return RecordedExecution(
        ledger=execution.ledger,
        task=execution.task,
        reward=found.reward,
        failure=execution.failure,
        error=execution.error,
        started=started,
        seconds=execution.seconds,
        samples=found.samples,
        rewards=tuple((item.after, dict(item.values)) for item in execution.emitted),
        spans=tuple(_span(span, started) for span in execution.spans),
        counters=dict(execution.counters),
        engine_errors=execution.engine_errors,
        earlier=execution.earlier,
        row=found.row,
        refused=execution.refused,
        said={} if any(turn.media is not None for turn in execution.ledger.turns) else execution.said,
        dataset=found.dataset,
        unused=found.unused,
    )


def _row(sample: Sample) -> dict[str, object]:
    metadata = {name: value for name, value in (sample.metadata or {}).items() if name != "agl"}
    return {
        "prompt": sample.prompt,
        "label": sample.label,
        "metadata": metadata,
        "custom_rm_path": sample.custom_rm_path,
    }


def _sample(sample: Sample) -> RecordedSample:
    provenance = (sample.metadata or {}).get("agl", {})
    return RecordedSample(
        index=sample.index,
        group_index=sample.group_index,
        rollout_id=sample.rollout_id,
        segment=provenance.get("segment", 0),
        status=sample.status.value,
        reward=sample.reward,
        mask=array("b", sample.loss_mask or ()),
        removed=bool(sample.remove_sample),
        credit=tuple(RecordedCredit(*turn) for turn in provenance.get(KEY, ())),
    )


def _span(span: Any, started: float) -> dict[str, object]:
    """A span without what the ledger has in full, and with long texts truncated."""
    begin = span.start_time or started
    attributes = {
        name: value[:LONGEST_ATTRIBUTE] if isinstance(value, str) else value
        for name, value in span.attributes.items()
        if not name.endswith("token_ids") and name != "logprobs.content"
    }
    return {
        "name": span.name,
        "at": begin - started,
        "seconds": (span.end_time or begin) - begin,
        "attributes": attributes,
    }

"""Recorded Samples as rows of supervised data: exact ids, the mask of what trains, and the messages behind them."""

from __future__ import annotations

import json
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime_agl.chat.template.messages import normalise
from slime_agl.errors import InvariantError, TemplateError
from slime_agl.export.where import Condition, Value
from slime_agl.record.blot import BLOTTED_ID
from slime_agl.record.run import Record, RecordedExecution, RecordedSample
from slime_agl.record.said import Said
from slime_agl.report.summary import number
from slime_agl.trace.segments import Segment

EVAL = "eval"
# Facts that go into a row's metadata.
_NAMED = ("step", "execution", "rollout_id", "group", "segment", "segments", "turns", "agent", "reward", "source")
# Reasons why a Sample gives no row.
EVALUATION, NO_TOKENS, UNTRAINED = "of an evaluation", "no tokens of its own", "no token trains"
BLOTTED, IMAGES, UNFIT = "credentials were blotted out", "images", "its mask does not fit its tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRow:
    """One Sample. loss_mask: one entry per token, 1 on sampled tokens that train.

    facts: what `--where` compares. messages: None if the record has none. checksum: CRC-32 of the tokens' bytes.
    """

    facts: Mapping[str, Value]
    tokens: array
    loss_mask: array
    messages: list[dict[str, Any]] | None
    tools: list[Mapping[str, Any]] | None
    checksum: int

    def as_dict(self) -> dict[str, Any]:
        """The row as it is written: `metadata` is what slime's data source hands to `slime_agl.rollout.sft`."""
        return {
            "messages": self.messages or [],
            # As text, because a parquet column takes one type; never null, which slime's data source refuses.
            "tools": json.dumps(self.tools or [], ensure_ascii=False),
            "metadata": {
                "tokens": self.tokens.tolist(),
                "loss_mask": self.loss_mask.tolist(),
                "checksum": self.checksum,
                **{name: self.facts[name] for name in _NAMED},
            },
        }


def sft_rows(
    records: Sequence[Record], condition: Condition | None, *, evaluations: bool = False
) -> tuple[list[SftRow], Counter[str]]:
    """Rows of all recorded Samples for which the condition holds, and how many gave none, by reason.

    evaluations: include executions of evaluations, which are left out otherwise.

    Raises:
        ConfigError: the condition names a field that no Sample has, or compares values of different kinds.
    """
    made: list[SftRow] = []
    left_out: Counter[str] = Counter()
    known: dict[str, object] = {}
    for record in records:
        for execution in record.executions:
            for sample in execution.samples:
                facts = _facts(record, execution, sample)
                known |= facts
                if facts["evaluation"] and not evaluations:
                    left_out[EVALUATION] += 1
                    continue
                row = _row(record, execution, sample, facts)
                if isinstance(row, str):
                    left_out[row] += 1
                else:
                    made.append(row)
    if condition is None:
        return made, left_out
    if known:
        condition.require(known)
    kept = [row for row in made if condition.holds(row.facts)]
    if len(kept) < len(made):
        left_out[f"not {condition.text}"] = len(made) - len(kept)
    return kept, left_out


def _row(
    record: Record, execution: RecordedExecution, sample: RecordedSample, facts: Mapping[str, Value]
) -> SftRow | str:
    """The row of a Sample, or the reason why there is none."""
    parts = execution.segments
    if sample.segment >= len(parts) or sample.removed:
        return NO_TOKENS if sample.segment >= len(parts) else UNTRAINED
    segment = parts[sample.segment]
    if any(turn.media is not None for turn in segment.turns):
        return IMAGES
    tokens, sampled = _tokens(segment)
    mask = array("b", bytes(max(0, len(tokens) - len(sample.mask)))) + sample.mask
    if len(mask) != len(tokens) or any(mine and not own for mine, own in zip(mask, sampled, strict=True)):
        return UNFIT
    if not any(mask):
        return UNTRAINED
    if BLOTTED_ID in tokens:
        return BLOTTED
    return SftRow(
        facts=facts,
        tokens=tokens,
        loss_mask=mask,
        messages=_messages(execution.said, segment, mask),
        tools=_tools(execution.said, segment),
        checksum=checksum(record.tokens.get(i, f"<{i}>".encode()) for i in tokens),
    )


def checksum(pieces: Iterator[bytes]) -> int:
    """CRC-32 of tokens' bytes: equal for one tokenizer, and almost surely different for another."""
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return value


def _facts(record: Record, execution: RecordedExecution, sample: RecordedSample) -> dict[str, Value]:
    parts, ledger = execution.segments, execution.ledger
    segment = parts[sample.segment] if sample.segment < len(parts) else None
    last = segment.turns[-1].index if segment is not None else None
    data = _row_data(execution)
    facts: dict[str, Value] = {
        "step": int(record.header.get("step", 0)),
        "evaluation": record.header.get("name") == EVAL,
        "dataset": execution.dataset,
        "execution": ledger.rollout_id,
        "rollout_id": sample.rollout_id,
        "index": sample.index,
        "group": sample.group_index,
        "segment": sample.segment,
        "segments": len(parts),
        "turns": len(ledger.turns),
        "tokens": ledger.length(last) if last is not None else 0,
        "trained": sum(sample.mask),
        "reward": number(sample.reward),
        "failure": execution.failure,
        "status": sample.status,
        "truncated": sample.status == "truncated",
        "seconds": execution.seconds,
        "agent": _agent(segment) if segment is not None else "",
        "source": _text(data.get("source_name")),
    }
    if isinstance(sample.reward, dict):
        facts |= {f"reward.{name}": number(value) for name, value in sample.reward.items()}
    plain = {name: value for name, value in data.items() if value is None or isinstance(value, str | int | float)}
    return facts | {f"task.{name}": value for name, value in plain.items()}


def _row_data(execution: RecordedExecution) -> dict[str, Any]:
    """The data row: the default task holds it; beside another task it is recorded on its own."""
    row = execution.row
    if row is not None:
        metadata = row.get("metadata")
        more = metadata if isinstance(metadata, dict) else {}
        return {"prompt": row.get("prompt"), "label": row.get("label"), **more}
    return execution.task if isinstance(execution.task, dict) else {"prompt": execution.task}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _agent(segment: Segment) -> str:
    return next(turn.model for turn in reversed(segment.turns) if turn.index in segment.trained)


def _tokens(segment: Segment) -> tuple[array, array]:
    """The segment's ids, and 1 for each that was sampled where it trains."""
    ids, sampled = array("i"), array("b")
    for turn in segment.turns:
        output = turn.output_ids()
        ids += turn.new_ids + output
        sampled += array("b", bytes(len(turn.new_ids)))
        sampled += array("b", bytes([turn.index in segment.trained]) * len(output))
    return ids, sampled


def _messages(said: Mapping[int, Said], segment: Segment, mask: array) -> list[dict[str, Any]] | None:
    """The conversation. Assistant messages have slime's `step_loss_mask`: 1 if any of its tokens train here, else 0."""
    messages: list[dict[str, Any]] = []
    at = 0
    for turn in segment.turns:
        one = said.get(turn.index)
        if one is None:
            return None
        at += len(turn.new_ids)
        trains = any(mask[at : at + turn.output_length])
        at += turn.output_length
        try:
            messages += [_plain(message, trains=False) for message in one.added]
            messages.append(_plain(one.reply, trains=trains))
        except (TemplateError, InvariantError):  # as in a record from elsewhere
            return None
    return messages


def _plain(given: Mapping[str, Any], *, trains: bool) -> dict[str, Any]:
    """A message of chat completions: content as one text, arguments of calls as JSON text."""
    (message,) = normalise([dict(given)])
    for call in message.get("tool_calls") or ():
        function = call["function"]
        if not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    if message["role"] == "assistant":
        message["step_loss_mask"] = int(trains)
    return message


def _tools(said: Mapping[int, Said], segment: Segment) -> list[Mapping[str, Any]] | None:
    one = said.get(segment.turns[-1].index)
    return None if one is None or one.tools is None else list(one.tools)

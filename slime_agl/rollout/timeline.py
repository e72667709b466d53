"""The turns of a Sample as the events that slime's performance metrics and its trace viewer read."""

from __future__ import annotations

import uuid
from typing import Any

from slime_agl.host import Sample
from slime_agl.trace.segments import Segment
from slime_agl.trace.turn import Sampled

VERSION = 1
REQUEST = "sglang_generate"
# What slime reads of SGLang's meta_info, beside the numbers of tokens and the fields of disaggregated prefill.
_FIELDS = ("queue_time", "e2e_latency", "decode_throughput")
_DISAGGREGATED = "pd_"


def add_timeline(sample: Sample, segment: Segment) -> None:
    """Write a span for each engine answer that trains in this Sample into `sample.trace`, in slime's format.

    A turn that several Samples share is in the one it trains in, so that slime counts a request once.
    Timestamps are seconds since the epoch.
    """
    carrier = getattr(sample, "trace", None) or {"version": VERSION, "trace_id": uuid.uuid4().hex, "events": []}
    carrier |= {"sample_id": sample.index, "group_id": sample.group_index, "attempt": carrier.get("attempt", 0)}
    common = {name: carrier[name] for name in ("trace_id", "sample_id", "group_id", "attempt")}
    for turn in segment.turns:
        if turn.index not in segment.trained:
            continue
        began = turn.ended - sum(part.latency for part in turn.parts)
        for part in turn.parts:
            span = {"name": REQUEST, "span_id": uuid.uuid4().hex, **common}
            carrier["events"] += [
                {"type": "span_start", "ts": began, **span},
                {"type": "span_end", "ts": began + part.latency, **span, "attrs": _attributes(part)},
            ]
            began += part.latency
    sample.trace = carrier


def _attributes(part: Sampled) -> dict[str, Any]:
    found = {"prompt_tokens": part.prompt_tokens, "completion_tokens": len(part.ids), "finish_reason": part.finish}
    found |= {"cached_tokens": part.cached_tokens, "e2e_latency": part.latency}
    kept = {name: value for name, value in part.meta.items() if name in _FIELDS or name.startswith(_DISAGGREGATED)}
    return found | kept

"""Write the turns of a Sample as events for slime's performance metrics and trace viewer."""

from __future__ import annotations

import itertools
import uuid

from slime_agl.host import Sample
from slime_agl.trace.segments import Segment
from slime_agl.trace.turn import Sampled

VERSION = 1
REQUEST = "sglang_generate"
# Fields of SGLang's meta_info that slime reads, beside token counts and those of disaggregated prefill.
_FIELDS = ("queue_time", "e2e_latency", "decode_throughput")
_DISAGGREGATED = "pd_"


def add_timeline(sample: Sample, segment: Segment) -> None:
    """Add a span to `sample.trace`, in slime's format, for each engine answer that trains in this Sample.

    A turn that several Samples share appears only where it trains, so that slime counts a request once.
    Timestamps are seconds since the epoch.
    """
    carrier = getattr(sample, "trace", None) or {"version": VERSION, "trace_id": uuid.uuid4().hex, "events": []}
    carrier |= {"sample_id": sample.index, "group_id": sample.group_index, "attempt": carrier.get("attempt", 0)}
    common = {name: carrier[name] for name in ("trace_id", "sample_id", "group_id", "attempt")}
    # Unique as the trace's id is; a random one for each costs a system call.
    ids = (f"{carrier['trace_id']}-{number}" for number in itertools.count(len(carrier["events"])))
    for turn in segment.turns:
        if turn.index not in segment.trained:
            continue
        began = turn.ended - sum(part.latency for part in turn.parts)
        for part in turn.parts:
            span = {"name": REQUEST, "span_id": next(ids), **common}
            carrier["events"] += [
                {"type": "span_start", "ts": began, **span},
                {"type": "span_end", "ts": began + part.latency, **span, "attrs": _attributes(part)},
            ]
            began += part.latency
    vars(sample)["trace"] = carrier  # no field: slime sets the attribute on Samples that it traces


def _attributes(part: Sampled) -> dict[str, object]:
    found: dict[str, object] = {
        "prompt_tokens": part.prompt_tokens,
        "completion_tokens": len(part.ids),
        "finish_reason": part.finish,
    }
    found |= {"cached_tokens": part.cached_tokens, "e2e_latency": part.latency}
    kept = {name: value for name, value in part.meta.items() if name in _FIELDS or name.startswith(_DISAGGREGATED)}
    return found | kept

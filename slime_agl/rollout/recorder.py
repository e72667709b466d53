"""The books of a step: its counts, and its record in `agl.record_dir`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slime_agl import __version__
from slime_agl.execution import Execution
from slime_agl.host import RolloutArgs, Sample
from slime_agl.record.run import SUFFIX, RecordedExecution, RecordedSample, RecordWriter
from slime_agl.rollout.executions import Entry
from slime_agl.rollout.tally import Tally
from slime_agl.runtime import Runtime

LONGEST_ATTRIBUTE = 2000
# Arguments of slime that decide prompts, the agent's answers and rewards.
ARGUMENTS = tuple(
    """
    chat_template_path apply_chat_template_kwargs sglang_tool_call_parser sglang_reasoning_parser rollout_stop
    rollout_stop_token_ids rollout_skip_special_tokens rollout_max_context_len eval_max_context_len
    rollout_temperature rollout_top_p rollout_top_k use_rollout_routing_replay num_layers moe_router_topk
    sglang_router_ip sglang_router_port sglang_model_routers rollout_sample_hook_path custom_rm_path rm_type
    group_rm reward_key eval_reward_key
    """.split()
)


class Books:
    """The tally of a step, and its record when `agl.record_dir` is set: `step-N` or `eval-N`.

    Raises:
        ConfigError: the record's file cannot be created.
    """

    def __init__(self, runtime: Runtime, args: RolloutArgs, step: int, *, evaluation: bool) -> None:
        config, renderer = runtime.config, runtime.renderer
        name = "eval" if evaluation else "step"
        self.tally = Tally("eval" if evaluation else "rollout")
        self._writer: RecordWriter | None = None
        # The default task contains its row; other tasks, and slime's reward functions, may need the row itself.
        self._rows = config.task is not None or args.custom_rm_path is not None
        if config.record_dir is None:
            return
        header = {
            "name": name,
            "step": step,
            "agent": config.agent,
            "model": config.model,
            "checkpoint": str(args.hf_checkpoint),
            "stop_ids": sorted(renderer.stop_ids),
            "context_length": runtime.engine_info.context_length,
            "agl": args.agl,
            "arguments": {name: getattr(args, name) for name in ARGUMENTS},
            "slime_agl": __version__,
        }
        path = Path(config.record_dir) / f"{name}-{step:06d}{SUFFIX}"
        self._writer = RecordWriter(path, header, renderer.token_bytes)

    def enter(self, entries: Sequence[Entry], unused: str = "") -> None:
        """Count and record executions. unused: why none of their tokens train, '' when they are delivered."""
        for entry in entries:
            self.tally.add(entry.execution, entry.samples, unused=unused, off_policy=entry.off_policy)
            if self._writer is not None:
                self._writer.write(recorded(entry.execution, entry.samples, with_row=self._rows))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def recorded(execution: Execution, samples: Sequence[Sample], *, with_row: bool) -> RecordedExecution:
    """The recorded form of an execution. samples: its own, scored or not. with_row: record the data row too."""
    started = min((turn.started for turn in execution.ledger.turns), default=0.0)
    started = min([started, *(span.start_time for span in execution.spans if span.start_time)])
    return RecordedExecution(
        ledger=execution.ledger,
        task=execution.task,
        reward=samples[0].reward,
        failure=execution.failure,
        error=execution.error,
        started=started,
        seconds=execution.seconds,
        samples=tuple(_sample(sample) for sample in samples),
        rewards=tuple((item.after, dict(item.values)) for item in execution.emitted),
        spans=tuple(_span(span, started) for span in execution.spans),
        counters=dict(execution.counters),
        engine_errors=execution.engine_errors,
        earlier=execution.earlier,
        row=_row(samples[0]) if with_row else None,
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
    return RecordedSample(
        index=sample.index,
        group_index=sample.group_index,
        rollout_id=sample.rollout_id,
        segment=(sample.metadata or {}).get("agl", {}).get("segment", 0),
        status=sample.status.value,
        reward=sample.reward,
        mask=array("b", sample.loss_mask or ()),
        removed=bool(sample.remove_sample),
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

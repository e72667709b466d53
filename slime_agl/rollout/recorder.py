"""The books of a step: its counts, and its record in `agl.record_dir`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from slime_agl import __version__
from slime_agl.execution import Execution
from slime_agl.executor.entry import Entry
from slime_agl.executor.recording import Verdict, recorded, verdict
from slime_agl.host import RolloutArgs
from slime_agl.record.run import SUFFIX, RecordWriter
from slime_agl.rollout.tally import Tally
from slime_agl.runtime import Kept, Runtime

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
# Those that decide what a reward trains.
TRAINER = (
    "advantage_estimator",
    "rewards_normalization",
    "grpo_std_normalization",
    "custom_reward_post_process_path",
    "custom_advantage_function_path",
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
        self._runtime = runtime
        self._writer: RecordWriter | None = None
        self._elsewhere: list[tuple[Kept, Verdict]] = []
        # The default task contains its row; other tasks, and slime's reward functions, may need the row itself.
        self._rows = config.task is not None or args.custom_rm_path is not None
        if config.record_dir is None:
            return
        header = {
            "name": name,
            "step": step,
            "run": uuid.uuid4().hex,  # tells worker files of an earlier run from those of this one
            "agent": str(config.agent),
            "model": config.model,
            "checkpoint": str(args.hf_checkpoint),
            "stop_ids": sorted(renderer.stop_ids),
            "context_length": runtime.engine_info.context_length,
            "agl": args.agl,
            "arguments": {name: getattr(args, name) for name in ARGUMENTS},
            "trainer": {name: getattr(args, name, getattr(args.raw, name, None)) for name in TRAINER},
            "slime_agl": __version__,
        }
        self._path, self._header = Path(config.record_dir) / f"{name}-{step:06d}{SUFFIX}", header
        self._writer = RecordWriter(self._path, header, renderer.token_bytes)

    def enter(
        self, entries: Sequence[Entry], unused: str = "", *, dataset: str = "", prompt: int | None = None
    ) -> None:
        """Count and record executions. unused: why none of their tokens train, '' when they are delivered.

        dataset, prompt: of an evaluation, see `verdict`.
        """
        for entry in entries:
            self.tally.add(entry.summary, entry.samples, unused=unused, off_policy=entry.off_policy)
            if self._writer is None:
                continue
            found = verdict(entry.samples, with_row=self._rows, dataset=dataset, prompt=prompt, unused=unused)
            if isinstance(entry.kept, Execution):
                self._writer.write(recorded(entry.kept, found))
            elif isinstance(entry.kept, Kept):
                self._elsewhere.append((entry.kept, found))

    async def settle(self) -> None:
        """Have workers record the executions that they keep, each in a file of its own beside this one."""
        elsewhere, self._elsewhere = self._elsewhere, []
        if elsewhere and self._writer is not None:
            self._writer.name_workers(await self._runtime.record(str(self._path), self._header, elsewhere))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

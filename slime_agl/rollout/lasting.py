"""The state that outlives a step."""

from __future__ import annotations

import asyncio
from collections import Counter

from slime_agl.executor.register import Register
from slime_agl.host import EvalPrompts, RolloutArgs
from slime_agl.host.tracking import Telemetry
from slime_agl.outstanding import Outstanding
from slime_agl.rollout.brake import Brake
from slime_agl.rollout.one_by_one import OneByOne
from slime_agl.rollout.pool import Pool
from slime_agl.runtime import Runtime

ABORTED = "aborted_tokens"
# Counts of what agents did after their end or beyond their own attempt.
CONTAINED = tuple(
    """
    late_requests dropped_calls abandoned_threads abandoned_tasks leaked_tasks mixed_calls exits_caught
    blocked_loops blocked_seconds lost_attempts ended_processes left_processes
    """.split()
)
# Counts of workers that died, and of the executions that ran again or were lost for it.
WORKERS = tuple(
    f"workers/{name}"
    for name in ("deaths", "replacements", "interrupted_executions", "lost_executions", "unrecorded_executions")
)

# Counts of the sandboxes that harnesses run in.
SANDBOXES = tuple(f"sandbox/{name}" for name in ("created", "retried", "failed", "expired", "reaped"))


# How often `agl.runners.max_concurrency: auto` changed the limit, and the limit itself.
PACE, LIMIT = ("concurrency_lowered", "concurrency_raised"), "concurrency"


class Lasting:
    """Everything that lasts from step to step on one runtime and ends with it. Used on the runtime's loop.

    limit: on concurrent executions when counts were last taken, None if it is fixed.
    """

    def __init__(self, runtime: Runtime, args: RolloutArgs) -> None:
        self._runtime = runtime
        self._counted: Counter[str] = Counter()
        self.limit: float | None = None
        self.register = Register()
        self.outstanding = Outstanding()
        self.pool = Pool(self.outstanding)
        self.brake = Brake(runtime.config.failure, args.rollout_batch_size)
        self.eval_prompts = EvalPrompts(args, runtime.renderer.tokenizer)
        self.one_by_one = OneByOne(runtime, self.register)
        self.telemetry = Telemetry.of_environment()

    @classmethod
    def of(cls, runtime: Runtime, args: RolloutArgs) -> Lasting:
        """Return the runtime's own, made with the `args` of the first step that asks."""
        return runtime.keep(cls, lambda: cls(runtime, args))

    async def new_counts(self) -> Counter[str]:
        """Counts of CONTAINED, WORKERS, SANDBOXES, PACE and `aborted_tokens` since the last call, without zeros."""
        counts = await self._runtime.metrics()
        self.limit = counts.get(LIMIT)
        names = (*CONTAINED, *WORKERS, *SANDBOXES, *PACE, ABORTED)
        now = Counter({name: int(counts.get(name, 0)) for name in names})
        new, self._counted = now - self._counted, now
        new[ABORTED] += self.register.take_lost()
        return new

    async def close(self) -> None:
        await self.pool.close()
        await self.one_by_one.close()
        try:
            await asyncio.to_thread(self.telemetry.close)
        except RuntimeError:  # the process is at its end, and its pool of threads takes no more work
            self.telemetry.close()

"""For --custom-generate-function-path: one execution inside slime's own rollout loops."""

from __future__ import annotations

import asyncio
from typing import Any

from slime_agl.assemble import live_runtime
from slime_agl.config import Config
from slime_agl.errors import ConfigError
from slime_agl.executor.entry import Entry, Limits
from slime_agl.executor.fan_out import forks
from slime_agl.executor.parcel import widen
from slime_agl.host import RolloutArgs, Sample, current_step, is_aborting
from slime_agl.loops import Work, ended
from slime_agl.rollout.lasting import Lasting
from slime_agl.rollout.refusals import check_supported

__all__ = ["generate"]

ABORT_POLL_SECONDS = 0.5


async def generate(
    args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Run the agent on one Sample; slime's loop then runs its hooks and its reward options.

    Returns a Sample or, in training with `agl.generate_returns: list`, the list of all Samples of the execution.
    Their reward is set if the agent or `agl.reward` gives one. A failed execution is a masked Sample with status
    FAILED. If slime ends its step first, the given Sample comes back with status ABORTED and without tokens; the agent
    starts afresh in a later step.

    Raises:
        ConfigError: a flag, a key of `agl:` or a data row has to be changed; or an execution made several
            Samples and `agl.generate_returns` is `sample`.
        EngineUnavailable: the router does not answer.
        InvariantError: a token invariant broke.
    """
    config = Config.read(getattr(args, "agl", None))
    read = RolloutArgs.read(args)
    check_supported(read, config, slimes_loop=True)
    # Blocks: loads a tokenizer and starts threads.
    runtime = await asyncio.to_thread(live_runtime, config, read)
    limits = Limits(
        sampling_params.get("max_new_tokens"), read.eval_max_context_len if evaluation else read.rollout_max_context_len
    )
    lasting = Lasting.of(runtime, read)
    work = lasting.one_by_one.run(read, current_step(), sample, sampling_params, limits, evaluation=evaluation)
    entry = await asyncio.wrap_future(runtime.submit(_unless_aborted(args, work)))
    if entry is None:
        sample.status = Sample.Status.ABORTED
        return sample
    if not entry.usable:
        lasting.register.warn_once(f"an execution failed ({entry.summary.failure}):\n{entry.summary.error}")
    widen(entry.samples)
    if evaluation:
        return entry.samples[0]
    return _returned(config, entry)


async def _unless_aborted(args: Any, work: Work[Entry]) -> Entry | None:
    """Await the work; None if slime ends its step first, and then the agent has ended."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            if is_aborting(args):
                return None
            await asyncio.wait({task}, timeout=ABORT_POLL_SECONDS)
        return task.result()
    finally:
        await ended([task])


def _returned(config: Config, entry: Entry) -> Sample | list[Sample]:
    if config.generate_returns == "list":
        return entry.samples
    if len(entry.samples) > 1:
        reasons = forks(entry.summary.account.forks)
        raise ConfigError(
            f"an execution made {len(entry.samples)} Samples (forks: {reasons}), and slime's loop was promised one "
            "each; set agl.generate_returns: list, or use --rollout-function-path slime_agl.rollout.generate, which "
            "needs no such setting"
        )
    return entry.samples[0]

"""Rerun recorded executions on the engine's recorded answers."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from slime_agl.assemble import make_runtime
from slime_agl.config import Config
from slime_agl.engine.base import EngineInfo
from slime_agl.errors import ConfigError, RewardError
from slime_agl.execution import Execution
from slime_agl.executor.entry import Limits
from slime_agl.executor.register import Register
from slime_agl.executor.tasks import TaskBuilder
from slime_agl.executor.workshop import Workshop
from slime_agl.host import RolloutArgs, Sample, default_args, has_reward_option
from slime_agl.local.engine.smollm2 import NAME, resolve_model
from slime_agl.record.blot import BLOTTED_ID, MARK, needed_by_a_rerun
from slime_agl.record.run import Record, RecordedExecution, texts_of
from slime_agl.rerun.divergence import Divergence, ended_early, unrecorded
from slime_agl.rerun.engine import RecordedEngine
from slime_agl.rerun.outcome import REFUSED, Outcome
from slime_agl.rollout.recorder import ARGUMENTS

# Recorded answers set the length of each turn, so no other limit applies.
LONGEST_TURN = 1 << 24
# Keys of the agl: section that have no meaning here, or would overwrite the record.
LEFT_OUT = ("record_dir", "dashboard_port", "gateway", "async", "generate_returns", "teacher")

Pair = tuple[Record, RecordedExecution]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """Replacements for settings of the record; None or empty keeps the recorded one.

    agent, reward: import paths. model: a directory with the tokenizer. timeout: in seconds, per attempt.
    arguments: of slime, and the agl: section, as in a file for --custom-config-path.
    trust: allow code in the checkpoint that the record names.
    """

    agent: str | None = None
    reward: str | None = None
    model: str | None = None
    timeout: float | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    trust: bool = False


class _Attempts:
    """Starts each attempt at the engine before its agent runs."""

    def __init__(self, engine: RecordedEngine) -> None:
        self._engine = engine

    def begin(self, step: int) -> None:
        self._engine.next_attempt()


def rerun(pairs: Sequence[Pair], instead: Instead, tell: Callable[[str], None]) -> Iterator[Outcome]:
    """Rerun executions in order. tell: receives one sentence per aspect that is not rerun.

    Raises:
        ConfigError, TemplateError: the agent, the tokenizer or a setting is missing or has to change.
        InvariantError: the gateway's tokens break an invariant with this record.
    """
    rerunner: Rerunner | None = None
    try:
        for record, execution in pairs:
            if rerunner is None or not rerunner.serves(record):
                if rerunner is not None:
                    rerunner.stop()
                rerunner = Rerunner(record, instead, tell)
            yield rerunner.rerun(record, execution)
    finally:
        if rerunner is not None:
            rerunner.stop()


class Rerunner:
    """A runtime for records with the same settings."""

    def __init__(self, record: Record, instead: Instead, tell: Callable[[str], None]) -> None:
        self._settings = _settings(record)
        self._args = _arguments(record, instead)
        self._config = Config.read(self._args.agl)
        self._workshop, self._register = Workshop(self._config, self._args), Register()
        info = EngineInfo(str(self._args.hf_checkpoint), record.header.get("context_length"))
        self._engine = RecordedEngine(info)
        self._runtime = make_runtime(
            self._config,
            self._args,
            engine=self._engine,
            trust_remote_code=instead.trust or instead.model is not None,
        )
        self._runtime.start()
        try:
            self._check_tokenizer(record)
        except BaseException:
            self.stop()
            raise
        self._tell_limits(tell)

    def stop(self) -> None:
        self._runtime.stop()

    def serves(self, record: Record) -> bool:
        return _settings(record) == self._settings

    def rerun(self, record: Record, recorded: RecordedExecution) -> Outcome:
        """Run the agent on an execution's task and compare its behaviour with the record."""
        attempts = [(one.ledger, one.engine_errors) for one in recorded.earlier]
        self._engine.load([*attempts, (recorded.ledger, recorded.engine_errors)])
        began = time.perf_counter()
        execution, rewards, broken = self._runtime.run(self._run(record, recorded))
        seconds = time.perf_counter() - began
        failure = execution.failure or ("reward_error" if broken else "")
        if failure == "engine_error" and self._engine.unrecorded:
            failure, rewards = REFUSED, None
        known = [sample.reward for sample in recorded.samples]
        return Outcome(
            step=record.name,
            name=recorded.ledger.rollout_id,
            turns=sum(len(script.ledger.turns) for script in self._engine.scripts),
            matched=self._engine.given,
            attempts=(len(self._engine.scripts), self._engine.attempts),
            failure=failure,
            recorded_failure=recorded.failure,
            error=execution.error if execution.failure else broken,
            rewards=rewards,
            recorded_rewards=None if all(reward is None for reward in known) else tuple(known),
            divergence=self._divergence(failure, recorded.failure),
            seconds=seconds,
            blotted=needed_by_a_rerun(recorded.blotted),
        )

    async def _run(
        self, record: Record, recorded: RecordedExecution
    ) -> tuple[Execution, tuple[object, ...] | None, str]:
        """Return the execution, the rewards of its Samples if known, and the reward function's traceback or ''."""
        args, evaluation = self._args, record.header.get("name") == "eval"
        step = record.header["step"]
        await self._runtime.begin_step(step, args.rollout_temperature, args.rollout_top_p)
        executor = self._workshop.executor(
            self._runtime,
            self._register,
            step,
            evaluation=evaluation,
            bare=True,
            tasks=self._tasks(recorded),
            max_attempts=len(self._engine.scripts),
            watcher=_Attempts(self._engine),
        )
        limits = Limits(LONGEST_TURN, args.eval_max_context_len if evaluation else args.rollout_max_context_len)
        source = _source(recorded)
        execution = await executor.execute(source, self._sampling(recorded), limits, session_key="rerun")
        try:
            entry = await executor.entry(source, execution)
        except RewardError as error:
            return execution, None, _told(error.__cause__ or error)
        execution = entry.kept if isinstance(entry.kept, Execution) else execution  # as it was judged
        if (args.group_rm and not evaluation) or self._slimes_loop_pays(recorded, entry.samples[0]):
            return execution, None, ""
        try:
            await self._workshop.rewarder.score(entry.samples, evaluation=evaluation)
        except Exception as error:
            # slime's reward options are the user's code: its error is part of the outcome.
            return execution, None, _told(error)
        return execution, tuple(sample.reward for sample in entry.samples), ""

    def _slimes_loop_pays(self, recorded: RecordedExecution, sample: Sample) -> bool:
        """Check that slime's own loop sets the reward after the record is written, so it is unknown here."""
        unknown = sample.reward is None and all(one.reward is None for one in recorded.samples)
        return unknown and not has_reward_option(self._args.raw, sample)

    def _tasks(self, recorded: RecordedExecution) -> TaskBuilder | None:
        """Return a builder of the recorded task; None to use the user's own function, whose tasks may be any object."""
        if isinstance(self._config.task, str) and recorded.row is not None:
            return None
        return lambda _: recorded.task

    def _sampling(self, recorded: RecordedExecution) -> dict[str, object]:
        """Return the trainer's parameters, with every string that ended a recorded turn among the stops."""
        params = self._args.sampling_params()
        own = params["stop"] or []
        ends = {turn.matched for turn in recorded.ledger.turns if isinstance(turn.matched, str)}
        return {**params, "stop": [*([own] if isinstance(own, str) else own), *sorted(ends)] or None}

    def _divergence(self, failure: str, recorded_failure: str) -> Divergence | None:
        scripts = self._engine.scripts
        if self._engine.unrecorded:
            first = self._engine.unrecorded[0]
            return unrecorded(scripts[first.attempt].ledger, first, self._texts)
        if failure not in ("", recorded_failure):
            return None
        for attempt, script in enumerate(scripts[: self._engine.attempts]):
            if missing := script.missing():
                return ended_early(script.ledger, missing, self._texts, attempt=attempt)
        return None

    def _texts(self, ids: Sequence[int]) -> list[str]:
        told = [max(i, 0) for i in ids]
        texts = self._runtime.renderer.token_bytes(told)
        return texts_of(MARK.encode() if i == BLOTTED_ID else text for i, text in zip(ids, texts, strict=True))

    def _tell_limits(self, tell: Callable[[str], None]) -> None:
        args, notes = self._args, []
        if args.group_rm:
            notes.append("rewards of --group-rm are not rerun, because it scores whole groups")
        if args.rollout_sample_hook_path:
            hooks = ", ".join(args.rollout_sample_hook_path)
            notes.append(f"sample hooks are not rerun ({hooks}); rewards that they set will appear changed")
        for name, url in args.frozen_models.items():
            notes.append(f"answers of the frozen model {name} at {url} are not recorded; the agent calls it again")
        for note in notes:
            tell(note)

    def _check_tokenizer(self, record: Record) -> None:
        """Raise ConfigError if the tokenizer is not the run's."""
        ids = sorted(record.tokens.keys() - {BLOTTED_ID})
        for i, text in zip(ids, self._runtime.renderer.token_bytes(ids), strict=True):
            if text != record.tokens[i]:
                raise ConfigError(
                    f"the tokenizer in {self._args.hf_checkpoint} is not that of {record.path}: token {i} is {text!r} "
                    f"there and {record.tokens[i]!r} in the record; name the run's own tokenizer with --model DIR"
                )


def _settings(record: Record) -> bytes:
    header = {name: value for name, value in record.header.items() if name not in ("name", "step", "run", "made")}
    return orjson.dumps(header, option=orjson.OPT_SORT_KEYS)


def _arguments(record: Record, instead: Instead) -> RolloutArgs:
    """Return slime's arguments as recorded, with the user's replacements."""
    header = record.header
    section = dict(header.get("agl") or {"agent": header["agent"], "model": header["model"]})
    given = dict(instead.arguments)
    section |= given.pop("agl", None) or {}
    section |= {name: path for name in ("agent", "reward") if (path := getattr(instead, name)) is not None}
    if instead.timeout is not None:
        section["runners"] = {**(section.get("runners") or {}), "timeout_seconds": instead.timeout}
    section = {name: value for name, value in section.items() if name not in LEFT_OUT}
    recorded = {name: value for name, value in (header.get("arguments") or {}).items() if name in ARGUMENTS}
    arguments = {**recorded, "rollout_stop_token_ids": header["stop_ids"], **given}
    if instead.model is not None or "hf_checkpoint" not in given:
        arguments["hf_checkpoint"] = _checkpoint(record, instead.model)
    return RolloutArgs.read(default_args(**arguments, agl=section))


def _checkpoint(record: Record, model: str | None) -> str:
    if model is not None:
        return str(resolve_model(model)) if model == NAME else model
    recorded = record.header["checkpoint"]
    if Path(recorded).is_absolute() and not Path(recorded).exists():
        raise ConfigError(
            f"{recorded}, whose tokenizer was used for {record.path}, is not on this machine; "
            "name a directory with that tokenizer by --model DIR"
        )
    return recorded


def _source(recorded: RecordedExecution) -> Sample:
    """Return the Sample that the execution was made from, with the fields that rewards and tasks may read."""
    row, first = recorded.row, recorded.samples[0] if recorded.samples else None
    if row is None:
        told = dict(recorded.task) if isinstance(recorded.task, dict) else {"prompt": recorded.task}
        row = {"prompt": told.pop("prompt", ""), "label": told.pop("label", None), "metadata": told}
    return Sample(
        index=first.index if first else None,
        group_index=first.group_index if first else None,
        prompt=row["prompt"],
        label=row["label"],
        metadata=dict(row["metadata"] or {}),
        custom_rm_path=row.get("custom_rm_path"),
    )


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))

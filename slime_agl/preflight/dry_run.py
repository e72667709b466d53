"""Dry-run an agent: one step of the real rollout on a few rows, recorded and judged."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slime_agl.assemble import current
from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.config import Config
from slime_agl.errors import AgentError, ConfigError, InvariantError
from slime_agl.host import default_args, load_object
from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.engine.smollm2 import NAME, resolve_model
from slime_agl.local.train.driver import LocalDriver
from slime_agl.preflight.harness_looks import Decode, look_at_harness
from slime_agl.preflight.rows import look_at_rows
from slime_agl.record.reading import read_run
from slime_agl.report.checks import Finding, judge
from slime_agl.report.reencoding import Recode, look_at_re_encoding
from slime_agl.rollout import shutdown

TEACHER_TOLERANCE = 1e-4
# A dry run has one step, after which nothing may go on, and no trainer for a teacher's scores.
LEFT_OUT = ("async", "teacher")


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What to run.

    section: the `agl:` section, with the agent. rows, samples: groups and executions per group. tokens: limit per turn.
    engine: URL of a running engine, else `model` is served here. say, play: scripted answers in place of the model's
    (see LocalStack).
    """

    data: Path
    section: dict[str, Any]
    model: str
    engine: str | None
    say: tuple[str, ...]
    rows: int
    samples: int
    tokens: int
    temperature: float
    input_key: str
    label_key: str | None
    play: Callable[[str], str] | None = None


def dry_run(plan: DryRun, record: Path, starting: AbstractContextManager[object]) -> list[Finding]:
    """Run one step of `plan.rows` groups, recorded in `record`, and judge it. starting: entered while an engine starts.

    Raises:
        ConfigError: a row, the agent, the model or the configuration must be changed.
        EngineUnavailable: no engine answers.
    """
    section = plan.section
    rows_seen = look_at_rows(
        plan.data, plan.input_key, plan.label_key, section.get("task"), section.get("columns") or ()
    )
    wanted = _arguments(plan, record)
    config = Config.read(wanted["agl"])
    if isinstance(config.agent, str) and not config.workers.count:
        load_object(config.agent, key="agl.agent")  # before an engine starts; workers load their own
    with ExitStack() as stack:
        if plan.engine:
            local, args = None, _remote_args(plan.engine, plan.model, wanted)
        else:
            with starting:
                most = plan.rows * plan.samples
                local = stack.enter_context(LocalStack(plan.model, max_running=most, says=plan.say, play=plan.play))
            args = local.args(**wanted)
        stack.callback(shutdown)
        findings = _run(args, local, plan.temperature)
    records = read_run(record)
    executions = [execution for read in records for execution in read.executions]
    told = [] if "harness" not in (plan.section.get("agent") or ()) else look_at_harness(executions, _decoder(args))
    recoded = look_at_re_encoding(executions, _recoder(args.hf_checkpoint))
    return [rows_seen, *findings, *told, *judge(records), recoded]


def _arguments(plan: DryRun, record: Path) -> dict[str, Any]:
    return {
        "prompt_data": str(plan.data),
        "input_key": plan.input_key,
        "label_key": plan.label_key,
        "agl": {name: value for name, value in plan.section.items() if name not in LEFT_OUT}
        | {"record_dir": str(record)},
        "rollout_batch_size": plan.rows,
        "n_samples_per_prompt": plan.samples,
        "rollout_max_response_len": plan.tokens,
        "rollout_temperature": plan.temperature,
        "custom_reward_post_process_path": "slime_agl.reward.normalize_rewards",
    }


def _decoder(args: Namespace) -> Decode:
    tokenizer = load_tokenizer(args.hf_checkpoint)
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _recoder(checkpoint: str) -> Recode:
    tokenizer = load_tokenizer(checkpoint)

    def recode(ids: Sequence[int]) -> list[int]:
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return tokenizer.encode(text, add_special_tokens=False)

    return recode


def _run(args: Namespace, local: LocalStack | None, temperature: float) -> list[Finding]:
    name = "trained tokens are the engine's own"
    try:
        result = LocalDriver(args).step(0)
        workers = list(_look_at_workers())
        if local is None:
            own = "per the gateway; this engine keeps no record to compare with"
            return [*workers, Finding(name, "pass", own)]
        checked = local.check(result.samples)
        difference = local.teacher_difference(result.samples, temperature)
    except InvariantError as error:
        return [Finding(name, "fail", str(error))]
    except AgentError:
        return []  # the record tells how each agent failed
    words = f"{checked} tokens found in the engine's own record"
    if difference:
        words += f"; max |rollout - teacher-forced logprob| {difference:.1e}"
    agree = checked and difference < TEACHER_TOLERANCE
    return [
        *workers,
        Finding(name, "pass" if agree else "fail", words),
        Finding(
            "nothing is left at the engine",
            "fail" if local.in_flight else "pass",
            f"{local.in_flight} requests in flight",
        ),
    ]


def _look_at_workers() -> Iterator[Finding]:
    """Yield how the workers fared; nothing if agents ran in this process."""
    runtime = current()
    counts = {} if runtime is None else runtime.run(runtime.metrics())
    if "workers/alive" not in counts:
        return
    alive, deaths = int(counts["workers/alive"]), int(counts.get("workers/deaths", 0))
    words = f"agents ran in {alive} worker{'s' * (alive != 1)}"
    if deaths:
        words += f"; {deaths} died, and their executions ran again: see above what ended them"
    yield Finding("workers", "look" if deaths else "pass", words)


def _remote_args(engine: str, model: str, wanted: dict[str, Any]) -> Namespace:
    address = urlsplit(engine)
    if not address.hostname or not address.port:
        raise ConfigError(f"--engine is {engine!r}, it must look like http://127.0.0.1:30000")
    return default_args(
        hf_checkpoint=str(resolve_model(model)) if model == NAME else model,
        sglang_router_ip=address.hostname,
        sglang_router_port=address.port,
        **wanted,
    )

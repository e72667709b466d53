"""The dry run behind `slime-agl check`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.cli.check_rows import look_at_rows
from slime_agl.cli.settings import read_settings
from slime_agl.cli.waiting import waiting
from slime_agl.errors import AgentError, ConfigError, InvariantError
from slime_agl.host import default_args
from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.engine.smollm2 import NAME, resolve_model
from slime_agl.local.train.driver import LocalDriver
from slime_agl.record.reading import read_run
from slime_agl.report.checks import Finding, judge
from slime_agl.report.reencoding import Recode, look_at_re_encoding
from slime_agl.rollout import shutdown

TEACHER_TOLERANCE = 1e-4


def dry_run(
    data: Path,
    record: Path,
    *,
    agent: str,
    config: Path | None,
    engine: str | None,
    model: str,
    say: tuple[str, ...],
    rows: int,
    samples: int,
    quiet: bool,
    tokens: int,
    temperature: float,
    input_key: str,
    label_key: str | None,
) -> list[Finding]:
    """Run one step of `rows` groups, recorded in `record`, and judge it.

    Raises:
        ConfigError: a row, the agent, the model or the configuration has to be changed.
        EngineUnavailable: no engine answers.
    """
    section = _section(config) | {"agent": agent, "record_dir": str(record)}
    wanted = {
        "prompt_data": str(data),
        "input_key": input_key,
        "label_key": label_key,
        "agl": section,
        "rollout_batch_size": rows,
        "n_samples_per_prompt": samples,
        "rollout_max_response_len": tokens,
        "rollout_temperature": temperature,
        "custom_reward_post_process_path": "slime_agl.reward.normalize_rewards",
    }
    rows_seen = look_at_rows(data, input_key, label_key, section.get("task"))
    with ExitStack() as stack:
        local = None
        if not engine:
            with waiting(f"starting an engine with {model}", quiet=quiet):
                local = stack.enter_context(LocalStack(model, max_running=rows * samples, says=say))
        args = local.args(**wanted) if local else _remote_args(engine, model, wanted)
        stack.callback(shutdown)
        findings = _run(args, local, temperature)
    records = read_run(record)
    executions = [execution for read in records for execution in read.executions]
    return [rows_seen, *findings, *judge(records), look_at_re_encoding(executions, _recoder(args.hf_checkpoint))]


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
        if local is None:
            return [Finding(name, "pass", "as the gateway holds them; this engine keeps no record to compare with")]
        checked = local.check(result.samples)
        difference = local.teacher_difference(result.samples, temperature)
    except InvariantError as error:
        return [Finding(name, "fail", str(error))]
    except AgentError:
        return []  # The record tells how each agent failed.
    words = f"{checked} tokens found in the engine's own record"
    verdict = "pass" if checked else "fail"
    if difference:
        words += f"; max |rollout - teacher-forced logprob| {difference:.1e}"
        verdict = verdict if difference < TEACHER_TOLERANCE else "fail"
    quiet = Finding(
        "nothing is left at the engine", "fail" if local.in_flight else "pass", f"{local.in_flight} requests in flight"
    )
    return [Finding(name, verdict, words), quiet]


def _section(config: Path | None) -> dict[str, Any]:
    section = read_settings(config).get("agl") or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{config}: agl must be a mapping of keys to values, got {type(section).__name__}")
    return section


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

"""`slime-agl rerun`: re-run the recorded agent against its recorded answers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slime_agl.cli.names import is_called
from slime_agl.cli.settings import read_settings
from slime_agl.cli.visible import echo, json_line, print_skipped
from slime_agl.cli.waiting import waiting
from slime_agl.errors import RecordError, closest
from slime_agl.rerun.trust import look_here, named_by_records, require_trust

if TYPE_CHECKING:
    from slime_agl.rerun.outcome import Outcome
    from slime_agl.rerun.run import Instead, Pair


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--agent", metavar="PKG.MOD.NAME", help="Run this agent instead, such as your edited one.")
@click.option("--reward", metavar="PKG.MOD.NAME", help="Use this reward function f(task, execution) instead.")
@click.option(
    "--execution",
    "names",
    metavar="ID",
    multiple=True,
    help="Only this execution; a prefix of its id is enough. Repeatable.",
)
@click.option("--step", metavar="N", type=int, help="Only the executions of this step.")
@click.option("--failed", is_flag=True, help="Only executions that failed.")
@click.option("--model", help="'smollm2' or a directory with the run's tokenizer, if the recorded path is gone.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file with an agl: section and slime's arguments, which override the recorded ones.",
)
@click.option("--timeout", metavar="SECONDS", type=click.FloatRange(0, min_open=True), help="Time limit per attempt.")
@click.option(
    "--trust", is_flag=True, help="Run and load code that the record names: agent, rewards, a checkpoint's own."
)
@click.option("--json", "as_json", is_flag=True, help="Print outcomes, one JSON object per execution.")
def rerun(
    run: Path,
    names: tuple[str, ...],
    step: int | None,
    failed: bool,
    config: Path | None,
    trust: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Re-run the recorded agent against its recorded answers.

    Needs no engine and no GPU. RUN is the agl.record_dir of the run, or one file in it. Prompts are compared with the
    record token by token; the first divergence is printed as a diff. Records are untrusted input: the agent, reward
    functions and chat template they name are listed, and used only with --trust. Exit status: 0 if all results match
    the record, 1 if an execution diverged or failed or a reward changed, 2 if nothing could be rerun.
    """
    pairs, settings = _chosen(run, names, step, failed), read_settings(config)
    _require_trust(pairs, settings, options, trust=trust)
    with waiting("loading libraries", quiet=as_json):
        from slime_agl.cli.rerun.view import show_outcomes
        from slime_agl.rerun.run import Instead

    outcomes = _rerun(pairs, Instead(**options, arguments=settings, trust=trust))
    if as_json:
        for outcome in outcomes:
            sys.stdout.write(json_line(outcome.as_dict()))
    else:
        show_outcomes(outcomes)
    sys.exit(not all(outcome.as_recorded for outcome in outcomes))


def _require_trust(pairs: list[Pair], settings: dict[str, Any], options: dict[str, Any], *, trust: bool) -> None:
    """List what the record names, and put the working directory on the import path if a module in it is meant.

    Raises:
        RecordError: it names something, and is not trusted.
    """
    agl = settings.get("agl")
    section = agl if isinstance(agl, dict) else {}
    named = named_by_records(pairs, given=settings | {"agl": section}, options=options)
    if not trust:
        require_trust(named)
    for one in named:
        echo(f"trusted: {one}")
    own = [options["agent"], options["reward"], *section.values(), *settings.values()]
    look_here([path for path in (*own, *(one.name for one in named)) if isinstance(path, str)])


def _chosen(run: Path, names: tuple[str, ...], step: int | None, failed: bool) -> list[Pair]:
    """Read the executions to rerun.

    Raises:
        RecordError: there are none, or a record lacks what a rerun needs.
    """
    from slime_agl.record.reading import read_run

    records = read_run(run)
    for record in records:
        print_skipped(record)
        if missing := {"step", "checkpoint", "stop_ids"} - record.header.keys():
            raise RecordError(f"{record.path}, line 1 has no {' and no '.join(sorted(missing))}; nothing can be rerun")
        if record.header["version"] < 2:
            echo(
                f"{record.path} is of version 1, which does not record the agl: section, slime's arguments or failed "
                "attempts; defaults are used: give --config FILE and --reward PATH if the run had others"
            )
    pairs = [(record, execution) for record in records for execution in record.executions]
    for name in names:
        known = [execution.ledger.rollout_id for _, execution in pairs]
        if not any(is_called(one, name) for one in known):
            raise RecordError(f"no execution of {run} is called {name!r}.{closest(name, known)}")
    chosen = [
        (record, execution)
        for record, execution in pairs
        if (not names or any(is_called(execution.ledger.rollout_id, name) for name in names))
        and step in (None, record.header["step"])
        and (execution.failure or not failed)
    ]
    if not chosen:
        steps = ", ".join(str(record.header["step"]) for record in records)
        raise RecordError(
            f"{run} has {len(pairs)} executions of steps {steps}, none of which matches; nothing to rerun"
        )
    return chosen


def _rerun(pairs: list[Pair], instead: Instead) -> list[Outcome]:
    """Rerun with progress on stderr, where the agent's prints go too."""
    from rich.console import Console
    from rich.progress import Progress

    from slime_agl.rerun.run import rerun as run_again

    outcomes = []
    progress = Progress(console=Console(stderr=True), transient=True)
    with redirect_stdout(sys.stderr), _failures_unlogged(), progress:
        bar = progress.add_task("rerun", total=len(pairs))
        for outcome in run_again(pairs, instead, echo):
            outcomes.append(outcome)
            progress.advance(bar)
    return outcomes


@contextmanager
def _failures_unlogged() -> Iterator[None]:
    """Silence the log of agents' failures: outcomes print the same tracebacks."""
    log = logging.getLogger("slime_agl.lightning.failures")
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was

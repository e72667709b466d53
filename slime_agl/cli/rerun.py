"""`slime-agl rerun`: a recorded run's agent, run again on its recorded answers."""

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
from slime_agl.cli.trust import look_here, named_by_records, require_trust
from slime_agl.cli.visible import json_line, tell_what_was_skipped, visible
from slime_agl.cli.waiting import waiting
from slime_agl.errors import RecordError, closest

if TYPE_CHECKING:
    from slime_agl.rerun.outcome import Outcome
    from slime_agl.rerun.run import Instead, Pair


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--agent", metavar="PKG.MOD.NAME", help="Another agent than the recorded one: yours, as you changed it.")
@click.option("--reward", metavar="PKG.MOD.NAME", help="Another reward function f(task, execution).")
@click.option(
    "--execution",
    "names",
    metavar="ID",
    multiple=True,
    help="Only this one; the beginning of its id will do. Repeatable.",
)
@click.option("--step", metavar="N", type=int, help="Only the executions of this step.")
@click.option("--failed", is_flag=True, help="Only executions that had failed.")
@click.option("--model", help="'smollm2' or a directory with the run's tokenizer, if the recorded one is gone.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML with an agl: section and slime's arguments, which go before the recorded ones.",
)
@click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(0, min_open=True), help="Longest time of an attempt."
)
@click.option(
    "--trust", is_flag=True, help="Run and load what the record names: agent, rewards, a checkpoint's own code."
)
@click.option("--json", "as_json", is_flag=True, help="Print outcomes, one JSON object an execution.")
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

    No engine and no GPU are needed. RUN is the directory that was agl.record_dir, or one of its files. Prompts are compared with the record token by
    token; where the agent leaves it, the first difference is shown as a diff. A record may come from anywhere: the
    agent, the reward functions and the chat template that it names are shown, and used only with --trust. Exit status:
    0 when everything came out as recorded, 1 when an execution diverged or failed or a reward changed, 2 when nothing
    could be rerun.
    """
    pairs, settings = _chosen(run, names, step, failed), read_settings(config)
    _ask_for_trust(pairs, settings, options, trust=trust)
    with waiting("loading libraries", quiet=as_json):
        from slime_agl.cli.rerun_view import show_outcomes
        from slime_agl.rerun.run import Instead

    outcomes = _rerun(pairs, Instead(**options, arguments=settings, trust=trust))
    if as_json:
        for outcome in outcomes:
            sys.stdout.write(json_line(outcome.as_dict()))
    else:
        show_outcomes(outcomes)
    sys.exit(not all(outcome.as_recorded for outcome in outcomes))


def _ask_for_trust(pairs: list[Pair], settings: dict[str, Any], options: dict[str, Any], *, trust: bool) -> None:
    """Show what the record names. The import path is that of `python`, where what is to be imported stands here.

    Raises:
        RecordError: it names something, and is not trusted.
    """
    section = settings.get("agl") if isinstance(settings.get("agl"), dict) else {}
    named = named_by_records(pairs, given=settings | {"agl": section}, options=options)
    if not trust:
        require_trust(named)
    for one in named:
        click.echo(visible(f"trusted: {one}"), err=True)
    own = [options["agent"], options["reward"], *section.values(), *settings.values()]
    look_here([path for path in (*own, *(one.name for one in named)) if isinstance(path, str)])


def _chosen(run: Path, names: tuple[str, ...], step: int | None, failed: bool) -> list[Pair]:
    """The executions that the user names.

    Raises:
        RecordError: there are none.
    """
    from slime_agl.record.reading import read_run

    records = read_run(run)
    for record in records:
        tell_what_was_skipped(record)
        if missing := {"step", "checkpoint", "stop_ids"} - record.header.keys():
            raise RecordError(f"{record.path}, line 1 has no {' and no '.join(sorted(missing))}; nothing can be rerun")
        if record.header["version"] < 2:
            click.echo(
                f"{visible(str(record.path))} is of version 1, which does not tell the agl: section, slime's arguments and failed "
                "tries; defaults stand for them: give --config FILE and --reward PATH where the run had others",
                err=True,
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
            f"{run} has {len(pairs)} executions of steps {steps}, none of which is meant; nothing to rerun"
        )
    return chosen


def _rerun(pairs: list[Pair], instead: Instead) -> list[Outcome]:
    """Rerun with progress on stderr, where the agent's own prints go too."""
    from rich.console import Console
    from rich.progress import Progress

    from slime_agl.rerun.run import rerun as run_again

    outcomes = []
    progress = Progress(console=Console(stderr=True), transient=True)
    with redirect_stdout(sys.stderr), _each_failure_told_once(), progress:
        bar = progress.add_task("rerun", total=len(pairs))
        for outcome in run_again(pairs, instead, lambda note: click.echo(visible(note), err=True)):
            outcomes.append(outcome)
            progress.advance(bar)
    return outcomes


@contextmanager
def _each_failure_told_once() -> Iterator[None]:
    """Outcomes carry the tracebacks of agents; the log would tell some of them a second time."""
    log = logging.getLogger("slime_agl.lightning.failures")
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was

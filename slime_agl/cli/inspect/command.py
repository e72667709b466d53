"""`slime-agl inspect`: view a recorded run in the terminal, or as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from slime_agl.cli.names import is_called
from slime_agl.cli.visible import echo, json_line, print_skipped
from slime_agl.errors import RecordError, closest


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--execution", "name", metavar="ID", help="Show one execution token by token; a prefix of its id is enough."
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write one self-contained page here.")
@click.option("--json", "as_json", is_flag=True, help="Print figures, one JSON object per execution.")
@click.option("--failed", is_flag=True, help="Only executions that failed.")
@click.option("--evaluations", "evals", is_flag=True, help="Only pass@k and mean@k of evaluations.")
def inspect(run: Path, name: str | None, html: Path | None, as_json: bool, failed: bool, evals: bool) -> None:
    """View a recorded run in the terminal, or as one HTML page.

    RUN is the agl.record_dir of the run, or one file in it; in a directory, the files that workers wrote of a step are
    read as one. Prints a table of all executions by default, and pass@k and mean@k of evaluations. With --execution,
    output tokens that train are green, others grey; prompts, results and template text are dim.
    """
    from slime_agl.cli.inspect.view import show_evaluations, show_execution, show_run
    from slime_agl.record.reading import read_run
    from slime_agl.report.evaluations import evaluations
    from slime_agl.report.page import write_page
    from slime_agl.report.summary import readable, row

    records = read_run(run)
    for record in records:
        print_skipped(record)
    pairs, unreadable = readable(records)
    for words in unreadable:
        echo(words)
    if failed:
        count, pairs = len(pairs), [pair for pair in pairs if pair[1].failure]
        if not pairs:
            echo(f"none of the {count} executions of {run} failed")
            return
    if name is not None:
        names = [execution.ledger.rollout_id for _, execution in pairs]
        pairs = [pair for pair in pairs if is_called(pair[1].ledger.rollout_id, name)]
        if not pairs:
            raise RecordError(f"no execution of {run} is called {name!r}.{closest(name, names)}")
    if evals:
        found = evaluations(pairs)
        if as_json:
            sys.stdout.write("".join(json_line(one.as_dict()) for one in found))
        elif found:
            show_evaluations(found)
        else:
            echo(f"{run} has no recorded evaluation")
    elif html is not None:
        write_page(html, pairs, title=run.resolve().name)
        echo(f"wrote {html} ({len(pairs)} executions, {html.stat().st_size / 1e3:,.0f} kB)")
    elif as_json:
        for record, execution in pairs:
            sys.stdout.write(json_line(row(record, execution).as_dict()))
    elif name is not None:
        for record, execution in pairs:
            show_execution(record, execution)
    else:
        show_run(pairs)
        show_evaluations(evaluations(pairs))

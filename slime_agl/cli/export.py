"""`slime-agl export`: recorded executions as data for supervised fine-tuning."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from slime_agl.cli.visible import echo, print_skipped
from slime_agl.errors import RecordError


@click.command(short_help="Export executions as data for supervised fine-tuning.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="A .jsonl or .parquet file."
)
@click.option("--where", metavar="CONDITION", help="Keep rows for which this holds, such as 'reward >= 1'.")
@click.option("--evaluations", is_flag=True, help="Include executions of evaluations.")
def export(run: Path, out: Path, where: str | None, evaluations: bool) -> None:
    """Export recorded executions as token-exact data for supervised fine-tuning.

    RUN is the agl.record_dir of the run, or one file in it. Each Sample is one row: its exact ids and loss mask, which
    slime_agl.rollout.sft trains on as they are, and the chat messages, for other trainers. CONDITION compares fields
    (reward, turns, trained, truncated, failure, agent, step, reward.NAME, task.NAME, ...; a wrong name lists them all)
    with ==, !=, <, <=, >, >=, and, or, not and parentheses. Exit status: 0 if rows were written, 1 if there were none.
    """
    from slime_agl.export.rows import sft_rows
    from slime_agl.export.where import parse_condition
    from slime_agl.host.table import write_rows
    from slime_agl.record.reading import read_run

    condition = None if where is None else parse_condition(where)
    records = read_run(run)
    for record in records:
        print_skipped(record)
    if not any(record.executions for record in records):
        raise RecordError(f"{run} holds no executions; nothing to export")
    rows, left_out = sft_rows(records, condition, evaluations=evaluations)
    for reason, count in left_out.items():
        echo(f"{count} {'Sample' if count == 1 else 'Samples'} left out: {reason}")
    if not rows:
        echo("no rows; nothing was written", fg="red")
        sys.exit(1)
    write_rows(out, [row.as_dict() for row in rows])
    trained = sum(sum(row.loss_mask) for row in rows)
    echo(f"wrote {out} ({len(rows)} rows, {sum(len(row.tokens) for row in rows)} tokens, of which {trained} train)")

"""`slime-agl watch`: a run in progress, step by step, from its record alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from slime_agl.cli.visible import echo, json_line


@click.command(short_help="Watch a run in progress, step by step.")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--every", metavar="SECONDS", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Refresh.")
@click.option("--steps", metavar="N", type=click.IntRange(1), default=20, show_default=True, help="Newest steps shown.")
@click.option("--once", is_flag=True, help="Print the table once and end.")
@click.option("--json", "as_json", is_flag=True, help="Print figures once, one JSON object per step.")
def watch(run: Path, every: float, steps: int, once: bool, as_json: bool) -> None:
    """Watch a run in progress: rewards, failures, forks and time by step.

    RUN is the agl.record_dir of the run, or one file in it; it may not exist yet. Reads the record's files alone, also
    those of workers, as they grow, so it can run on any machine that sees them. Where the output is not a terminal, it
    prints once. Ends with Ctrl-C.

    middle: the middle half of the rewards. flat: groups whose rewards are all equal. masked: share of the sampled
    tokens that does not train. p90 s: nine of ten executions took less. engine: share of their time at the engine.
    """
    from slime_agl.record.following import Follower
    from slime_agl.report.live import figures, seen

    follower = Follower(run, seen, steps=steps)
    if as_json:
        for step in follower.poll():
            sys.stdout.write(json_line(figures(step).as_dict()))
        for words in follower.flaws():
            echo(words)
        return
    from slime_agl.cli.watch.view import Board, print_once, refresh

    board = Board(run, follower)
    if once or not sys.stdout.isatty():
        print_once(board)
        return
    try:
        refresh(board, lambda: time.sleep(every))
    except KeyboardInterrupt:
        pass  # the way to end it

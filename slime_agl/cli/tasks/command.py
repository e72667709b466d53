"""`slime-agl tasks`: list Harbor task directories, try them, and write the rows that name them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from slime_agl.cli.waiting import waiting

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--list", "only_list", is_flag=True, help="Read the tasks, and run nothing.")
@click.option("--rows", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write a row per task.")
@click.option("--backend", metavar="NAME", default="bwrap", show_default=True, help="As agl.sandbox.backend.")
@click.option("--concurrency", metavar="N", type=click.IntRange(1), default=4, show_default=True, help="At a time.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def tasks(folder: Path, only_list: bool, rows: Path | None, backend: str, concurrency: int, as_json: bool) -> None:
    """List and try the Harbor tasks in DIR.

    Each task's own solution must score 1 and the untouched environment 0, in sandboxes as in training. --rows writes
    the tasks that can be read, for slime's --prompt-data with agl.tasks.harbor set to DIR. Exit status: 0 if every
    task is sound, 1 if one is not, 2 if DIR has none.
    """
    with waiting("loading libraries", quiet=as_json):
        from slime_agl.cli.tasks.view import Progress, print_tasks, write_rows
        from slime_agl.config.sandbox import SandboxConfig
        from slime_agl.harness.harbor import find_tasks
        from slime_agl.harness.places import Places
        from slime_agl.harness.validate import Tried, read_tasks, try_tasks

    paths = find_tasks(folder)
    read = read_tasks(paths)
    if rows is not None:
        write_rows(rows, folder, read)

    async def run() -> list[Tried]:
        places = Places(SandboxConfig(backend=backend))
        try:
            await places.start()
            with Progress(len(paths), quiet=as_json) as progress:
                return await try_tasks(places, paths, at_a_time=concurrency, done=progress.tell)
        finally:
            await places.stop()

    tried = read if only_list else asyncio.run(run())
    print_tasks(tried, as_json=as_json, listed=only_list)
    sys.exit(any(one.verdict == "fail" for one in tried))

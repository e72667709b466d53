"""`slime-agl new`: an example as the start of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from slime_agl.cli.visible import echo

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
# Rows and executions per row of the check: enough to see that all parts fit.
ROWS, SAMPLES, TOKENS = 2, 2, 32
# The same for an example that a Trainer trains.
TRAIN, FEW_STEPS = ["train.py", "--local"], ["--steps", "1", "--runners", "2"]


@click.command()
@click.argument("name", required=False)
@click.option("--from", "example", metavar="EXAMPLE", default="calc_tool", show_default=True, help="Example to copy.")
@click.option("--into", type=FOLDER, default=".", show_default=True, help="Folder in which to make it.")
@click.option("--check/--no-check", default=True, show_default=True, help="Run slime-agl check on the copy.")
@click.option("--list", "listing", is_flag=True, help="List the examples.")
def new(name: str | None, example: str, into: Path, check: bool, listing: bool) -> None:
    """Start from a copy of an example, under a NAME of your own.

    Makes the folder NAME, which stands alone: agent, rows, agl.yaml, README, and a run.sh that trains it with slime or,
    with --local, runs it here. Then checks it: a few rows go through the rollout function that slime calls, with a
    small model on the CPU. agent_lightning_trainer has a train.py instead, which the check runs for one step. Exit
    status: that of the check.
    """
    from slime_agl.cli.new.copying import copy_example, example_names, examples_directory

    if listing:
        for one in example_names(examples_directory()):
            click.echo(f"{one:24}{_about(examples_directory() / one)}")
        return
    if name is None:
        raise click.UsageError("give the NAME of the folder to make, or --list")
    copied = copy_example(example, name, into)
    click.echo(
        f"made {copied.folder} from {example}: {', '.join(sorted(path.name for path in copied.folder.iterdir()))}"
    )
    if copied.agent is None:
        click.echo(f"run it:    cd {copied.folder} && python {' '.join(TRAIN)}")
        sys.exit(_run([*TRAIN, *FEW_STEPS], copied.folder) if check else 0)
    words = _check_words(copied.folder, copied.agent)
    there = "" if into == Path(".") else f"cd {into} && "
    click.echo(f"check it:  {there}slime-agl {' '.join(words)}")
    click.echo(f"run it:    {copied.folder / 'run.sh'} --local --record {copied.folder / 'run'}")
    click.echo(f"read it:   slime-agl inspect {copied.folder / 'run'}")
    if check:
        if (copied.folder / "stand_in.py").exists() and isinstance(copied.agent, str):
            click.echo("checking it with SmolLM2, which cannot do this task: its rewards will be equal")
        sys.exit(_run(["-m", "slime_agl.cli.main", *words], into))


def _about(folder: Path) -> str:
    """The first sentence of its README."""
    lines = (folder / "README.md").read_text(encoding="utf-8").split("\n\n", 2)
    return " ".join(lines[1].split()).partition(". ")[0].rstrip(".")


def _check_words(folder: Path, agent: object) -> list[str]:
    """The check's command line, to be run in the parent folder, which the agent is imported from."""
    at = folder.name
    config = ["--config", f"{at}/agl.yaml"]
    if isinstance(agent, dict):
        return [
            "check",
            "--harness",
            str(agent.get("harness")),
            "--task",
            f"{at}/tasks",
            "--rows",
            "1",
            "--backend",
            "local",
        ]
    rows = ["--data", f"{at}/train.jsonl", "--label-key", "label"]
    size = ["--rows", str(ROWS), "--samples", str(SAMPLES), "--tokens", str(TOKENS)]
    return ["check", "--agent", str(agent), *rows, *config, *size]


def _run(words: list[str], folder: Path) -> int:
    """Run the check in a process of its own, as the user would in that folder. words: after `python`."""
    command = [sys.executable, *words]
    environment = {**os.environ, "EXAMPLES": str(folder.resolve())}
    environment.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    status = subprocess.run(command, cwd=folder, env=environment).returncode
    if status:
        echo("the copy was made, and its check failed: see above", fg="red")
    return status

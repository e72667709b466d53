"""`slime-agl check`: dry-run the user's own agent on a few rows."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from slime_agl.cli.settings import read_section
from slime_agl.cli.waiting import waiting
from slime_agl.cli.workers import in_workers, workers_option
from slime_agl.errors import ConfigError

COUNT = click.IntRange(1)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option("--agent", metavar="PKG.MOD.NAME", required=True, help="Import path of the agent, as in agl.agent.")
@click.option("--data", required=True, type=FILE, help="Rows to run it on, one JSON object per line.")
@click.option("--rows", metavar="N", type=COUNT, default=4, show_default=True, help="Rows to run.")
@click.option("--samples", metavar="N", type=COUNT, default=2, show_default=True, help="Executions per row.")
@click.option("--config", type=FILE, help="YAML file with an agl: section to apply.")
@click.option("--input-key", metavar="NAME", default="prompt", show_default=True, help="Field with a row's prompt.")
@click.option("--label-key", metavar="NAME", help="Field with a row's label; none by default.")
@click.option(
    "--model", default="smollm2", show_default=True, help="'smollm2' or a Hugging Face directory, served on the CPU."
)
@click.option("--engine", metavar="URL", help="Use this SGLang server or router; --model names its checkpoint.")
@click.option(
    "--say",
    metavar="TEXT",
    multiple=True,
    help="Reply with this instead of a model; repeat for a sequence, which each execution starts anew.",
)
@click.option("--tokens", metavar="N", type=COUNT, default=128, show_default=True, help="Maximum tokens per turn.")
@click.option("--temperature", metavar="T", default=0.8, show_default=True, help="Sampling temperature.")
@workers_option
@click.option("--record", type=click.Path(file_okay=False, path_type=Path), help="Keep the record here, for inspect.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def check(
    agent: str, config: Path | None, workers: int | None, record: Path | None, as_json: bool, **plan: Any
) -> None:
    """Dry-run an agent: trainability, forks, and where the time goes.

    The rows go through the same rollout function that slime calls. Exit status: 0 if no finding failed, 1 if one did,
    2 if the agent could not be run.
    """
    # Import the agent from the working directory, as `python` would.
    sys.path.insert(0, str(Path.cwd()))
    with waiting("loading libraries", quiet=as_json):
        from slime_agl.cli.check.view import print_findings
        from slime_agl.preflight.dry_run import DryRun, dry_run

    if plan["engine"] and plan["say"]:
        raise ConfigError("--engine and --say exclude each other: a running engine samples its own replies")
    starting = waiting(f"starting an engine with {plan['model']}", quiet=as_json)
    with tempfile.TemporaryDirectory(prefix="slime-agl-check-") as scratch:
        section = in_workers(read_section(config) | {"agent": agent}, workers)
        findings = dry_run(DryRun(section=section, **plan), record or Path(scratch), starting)
    print_findings(findings, as_json=as_json)
    sys.exit(any(finding.verdict == "fail" for finding in findings))

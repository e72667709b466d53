"""`slime-agl check`: a user's own agent, dry-run on a few rows."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from slime_agl.cli.waiting import waiting
from slime_agl.errors import ConfigError


@click.command()
@click.option("--agent", metavar="PKG.MOD.NAME", required=True, help="Import path of the agent, as in agl.agent.")
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Rows to run it on, a JSON object a line.",
)
@click.option("--rows", metavar="N", type=click.IntRange(1), default=4, show_default=True, help="Rows to run.")
@click.option(
    "--samples", metavar="N", type=click.IntRange(1), default=2, show_default=True, help="Executions of each row."
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML with an agl: section to run under.",
)
@click.option("--input-key", metavar="NAME", default="prompt", show_default=True, help="Field with a row's prompt.")
@click.option("--label-key", metavar="NAME", help="Field with a row's label; none by default.")
@click.option(
    "--model", default="smollm2", show_default=True, help="'smollm2' or a Hugging Face directory, on the CPU."
)
@click.option("--engine", metavar="URL", help="SGLang server or router to ask instead; --model is its checkpoint.")
@click.option("--say", metavar="TEXT", multiple=True, help="Answer this in place of a model; several are said in turn.")
@click.option(
    "--tokens", metavar="N", type=click.IntRange(1), default=128, show_default=True, help="Most tokens of a turn."
)
@click.option("--temperature", metavar="T", default=0.8, show_default=True, help="Temperature of sampling.")
@click.option("--record", type=click.Path(file_okay=False, path_type=Path), help="Keep the record here, for inspect.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def check(data: Path, record: Path | None, as_json: bool, **options: Any) -> None:
    """Dry-run an agent: can it be trained, what forks, where does the time go.

    The rows go through the very rollout function that slime calls. Exit status: 0 when nothing failed, 1 when
    something did, 2 when it could not be run.
    """
    # The agent is imported from where the command is typed, as it would be by `python`.
    sys.path.insert(0, str(Path.cwd()))
    with waiting("loading libraries", quiet=as_json):
        from slime_agl.cli.check_run import dry_run
        from slime_agl.cli.check_view import print_findings

    if options["engine"] and options["say"]:
        raise ConfigError("--engine and --say exclude each other: a running engine says what it samples")
    with tempfile.TemporaryDirectory(prefix="slime-agl-check-") as scratch:
        findings = dry_run(data, record or Path(scratch), quiet=as_json, **options)
    print_findings(findings, as_json=as_json)
    sys.exit(any(finding.verdict == "fail" for finding in findings))

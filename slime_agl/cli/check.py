"""`slime-agl check`: a user's own agent, dry-run on a few rows."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from slime_agl.errors import ConfigError


@click.command()
@click.option("--agent", required=True, help="Import path of the agent, as in agl.agent.")
@click.option(
    "--data", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON lines of rows."
)
@click.option("--rows", default=4, show_default=True, help="How many rows to run.")
@click.option("--samples", default=2, show_default=True, help="Executions a row.")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="YAML with an agl: section."
)
@click.option("--input-key", default="prompt", show_default=True, help="Field of a row that holds the prompt.")
@click.option("--label-key", help="Field of a row that holds the label.")
@click.option(
    "--model", default="smollm2", show_default=True, help="'smollm2' or a Hugging Face directory, run on the CPU."
)
@click.option("--engine", help="URL of a running SGLang server or router to use; --model is then its checkpoint.")
@click.option("--say", multiple=True, help="Answer with this text in place of the model; may be given several times.")
@click.option("--tokens", default=128, show_default=True, help="Most tokens a turn.")
@click.option("--temperature", default=0.8, show_default=True)
@click.option(
    "--record", type=click.Path(file_okay=False, path_type=Path), help="Keep the record there, for `inspect`."
)
@click.option("--json", "as_json", is_flag=True, help="Findings as one JSON object.")
def check(data: Path, record: Path | None, as_json: bool, **options: Any) -> None:
    """Dry-run an agent and say whether it can be trained, what forks, and where the time goes.

    The rows go through the very rollout function that slime calls. Exit status: 0 when nothing failed, 1 when
    something did, 2 when it could not be run.
    """
    # The agent is imported from where the command is typed, as it would be by `python`.
    sys.path.insert(0, str(Path.cwd()))
    from slime_agl.cli.check_run import dry_run
    from slime_agl.cli.check_view import print_findings

    if options["engine"] and options["say"]:
        raise ConfigError("--engine and --say exclude each other: a running engine says what it samples")
    with tempfile.TemporaryDirectory(prefix="slime-agl-check-") as scratch:
        findings = dry_run(data, record or Path(scratch), quiet=as_json, **options)
    print_findings(findings, as_json=as_json)
    sys.exit(any(finding.verdict == "fail" for finding in findings))

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
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(short_help="Dry-run an agent on a few rows, with findings.")
@click.option("--agent", metavar="PKG.MOD.NAME", help="Import path of the agent; by default agl.agent of --config.")
@click.option("--data", type=FILE, help="Rows to run it on, one JSON object per line.")
@click.option("--harness", metavar="NAME", help="Run this program as the agent, as in agl.agent.harness.")
@click.option("--task", type=FOLDER, help="A Harbor task for --harness, or a folder of them.")
@click.option("--backend", metavar="NAME", help="As agl.sandbox.backend, for --harness.")
@click.option("--rows", metavar="N", type=COUNT, default=4, show_default=True, help="Rows to run.")
@click.option("--samples", metavar="N", type=COUNT, help="Executions per row; 2, or 1 with --harness.")
@click.option("--config", type=FILE, help="YAML file with an agl: section to apply.")
@click.option("--input-key", metavar="NAME", default="prompt", show_default=True, help="Field with a row's prompt.")
@click.option("--label-key", metavar="NAME", help="Field with a row's label; none by default.")
@click.option("--model", help="'smollm2', the default, or a Hugging Face directory, served on the CPU.")
@click.option("--engine", metavar="URL", help="Use this SGLang server or router; --model names its checkpoint.")
@click.option(
    "--say",
    metavar="TEXT",
    multiple=True,
    help="Reply with this instead of a model; repeat for a sequence, which each execution starts anew.",
)
@click.option("--tokens", metavar="N", type=COUNT, help="Maximum tokens per turn; 128, or 4096 with --harness.")
@click.option("--temperature", metavar="T", default=0.8, show_default=True, help="Sampling temperature.")
@workers_option
@click.option("--record", type=click.Path(file_okay=False, path_type=Path), help="Keep the record here, for inspect.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def check(
    agent: str | None,
    harness: str | None,
    task: Path | None,
    backend: str | None,
    config: Path | None,
    workers: int | None,
    record: Path | None,
    as_json: bool,
    **plan: Any,
) -> None:
    """Dry-run an agent: trainability, forks, and where the time goes.

    The rows go through the same rollout function that slime calls. With --harness and --task the agent is a program in
    a sandbox; unless --engine, --model or --say is given, the model plays the task's own solution. Exit status: 0 if
    no finding failed, 1 if one did, 2 if the agent could not be run.
    """
    section = read_section(config)
    if harness is task is backend is None and isinstance(section.get("agent"), str):
        agent = agent or section["agent"]
    _check_choice(agent, plan["data"], harness, task, backend)
    # Import the agent from the working directory, as `python` would.
    sys.path.insert(0, str(Path.cwd()))
    with waiting("loading libraries", quiet=as_json):
        from slime_agl.cli.check.view import print_findings
        from slime_agl.preflight.dry_run import DryRun, dry_run
        from slime_agl.preflight.harness_plan import install_here, section_of, solver, write_plan

    if plan["engine"] and plan["say"]:
        raise ConfigError("--engine and --say exclude each other: a running engine samples its own replies")
    own = plan["engine"] or plan["say"] or plan["model"]
    plan["model"] = plan["model"] or "smollm2"
    plan["samples"] = plan["samples"] or (1 if harness else 2)
    plan["tokens"] = plan["tokens"] or (4096 if harness else 128)
    starting = waiting(f"starting an engine with {plan['model']}", quiet=as_json)
    with tempfile.TemporaryDirectory(prefix="slime-agl-check-") as scratch:
        if harness and task:
            section = section_of(harness, section, backend)
            with waiting(f"installing {harness}, unless it is here", quiet=as_json):
                install_here(harness, section)
            tasks, plan["data"] = write_plan(harness, task, plan["rows"], Path(scratch))
            plan |= {"rows": len(tasks), "label_key": "label", "play": None if own else solver(harness, tasks)}
        else:
            section |= {"agent": agent}
        dry = DryRun(section=in_workers(section, workers), **plan)
        findings = dry_run(dry, record or Path(scratch) / "record", starting)
    print_findings(findings, as_json=as_json)
    sys.exit(any(finding.verdict == "fail" for finding in findings))


def _check_choice(
    agent: str | None, data: Path | None, harness: str | None, task: Path | None, backend: str | None
) -> None:
    if harness is None and task is None and backend is None:
        if agent is None or data is None:
            raise click.UsageError("give --data and --agent (or agl.agent in --config), or --harness and --task")
    elif agent is not None or data is not None:
        raise click.UsageError("--agent and --data exclude --harness, --task and --backend")
    elif harness is None or task is None:
        raise click.UsageError("--harness and --task belong together")

"""`slime-agl doctor`: check that this machine and this configuration are ready."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from slime_agl.cli.visible import json_line
from slime_agl.cli.waiting import waiting


@click.command(short_help="Check versions, slime, configuration and ports.")
@click.option("--slime", type=click.Path(exists=True, file_okay=False, path_type=Path), help="slime checkout to check.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file with an agl: section to check.",
)
@click.option("--model", help="'smollm2' or a Hugging Face directory: check its chat template.")
@click.option("--tool-call-parser", metavar="NAME", help="As slime's --sglang-tool-call-parser.")
@click.option("--router", metavar="URL", help="Router or SGLang server to query.")
@click.option(
    "--cluster",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value="auto",
    help="Ray cluster whose nodes to query; without ADDRESS, this machine's or $RAY_ADDRESS.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
@click.argument("slime_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- SLIME'S FLAGS]")
def doctor(
    slime: Path | None,
    config: Path | None,
    model: str | None,
    tool_call_parser: str | None,
    router: str | None,
    cluster: str | None,
    as_json: bool,
    slime_flags: tuple[str, ...],
) -> None:
    """Check versions, slime, configuration, chat template, router and cluster.

    Each line names a problem and its fix. Put the flags of a slime run after `--`. With --cluster each node is asked
    for its free CPUs, its clock, the tokenizer (--model or slime's --hf-checkpoint) and the way to the router. Exit
    status: 0 if nothing is wrong, 1 otherwise.
    """
    sys.path.insert(0, str(Path.cwd()))
    if slime is not None:
        sys.path.insert(0, str(slime.resolve()))
    with waiting("checking", quiet=as_json):
        from slime_agl.cli.check.view import print_table
        from slime_agl.preflight.looks import look

        findings = look(
            config=config,
            model=model,
            parser=tool_call_parser,
            router=router,
            slime=slime,
            flags=slime_flags,
            cluster=cluster,
        )
    wrong = [finding for finding in findings if finding.verdict == "fail"]
    if as_json:
        body = {"healthy": not wrong, "findings": [finding.as_dict() for finding in findings]}
        sys.stdout.write(json_line(body, indent=True))
    else:
        print_table(findings)
        words = {0: "nothing is wrong", 1: "1 thing is wrong"}.get(len(wrong), f"{len(wrong)} things are wrong")
        doubts = sum(finding.verdict not in ("fail", "pass") for finding in findings)
        looks = {0: "", 1: "; 1 finding deserves a look"}.get(doubts, f"; {doubts} findings deserve a look")
        click.secho(words + looks, fg="red" if wrong else "green", bold=True)
    sys.exit(bool(wrong))

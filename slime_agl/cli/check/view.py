"""Print findings as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slime_agl.cli.visible import json_line, safe_text
from slime_agl.report.checks import Finding

MARKS = {"pass": ("✓", "green"), "look": ("?", "yellow"), "fail": ("✗", "bold red")}


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    passed = not any(finding.verdict == "fail" for finding in findings)
    if as_json:
        body = {"passed": passed, "findings": [finding.as_dict() for finding in findings]}
        sys.stdout.write(json_line(body, indent=True))
        return
    print_table(findings)
    looks = sum(finding.verdict == "look" for finding in findings)
    verdict = "[bold green]can be trained[/]" if passed else "[bold red]cannot be trained like this[/]"
    Console().print(f"{verdict}; {looks} {'finding deserves' if looks == 1 else 'findings deserve'} a look")


def print_table(findings: Sequence[Finding]) -> None:
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = MARKS[finding.verdict]
        named = safe_text(finding.name, style if finding.verdict != "pass" else "")
        table.add_row(Text(mark, style), named, safe_text(finding.words))
    Console().print(table)

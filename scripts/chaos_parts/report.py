"""The table of loads, injected faults and their results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from chaos_parts.outcome import Outcome

COLUMNS = (
    "part",
    "executions",
    "turns",
    "trained tokens",
    "faults (kinds)",
    "wrong",
    "lost",
    "twice",
    "errors seen",
    "left",
    "s",
)
MOST_SAID = 3


def table(found: Mapping[str, Outcome], *, markdown: bool) -> str:
    """Return one line per part, and the totals."""
    whole = Outcome()
    for outcome in found.values():
        whole.add(outcome)
    rows = [COLUMNS, *(_row(name, outcome) for name, outcome in [*found.items(), ("all", whole)])]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    lines = []
    for at, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("| " + " | ".join(cells) + " |" if markdown else "  ".join(cells).rstrip())
        if at == 0:
            lines.append("|" + " --- |" * len(row) if markdown else "-" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join(lines)


def details(found: Mapping[str, Outcome]) -> str:
    """Return injected faults and what agents saw, by kind."""
    lines = []
    for name, outcome in found.items():
        lines.append(f"{name}: faults: " + _counts(outcome.faults))
        if outcome.errors:
            lines.append(f"{name}: errors that agents saw: " + _counts(outcome.errors))
    return "\n".join(lines)


def complaints(found: Mapping[str, Outcome], seed: int) -> str:
    """Return each broken promise with the command that reproduces it."""
    lines = []
    for name, outcome in found.items():
        said: dict[str, list[str]] = {}
        for who, what in outcome.broken:
            said.setdefault(who, []).append(what)
        for who, whats in said.items():
            lines += [f"BROKEN  {who}", *(f"        {what}" for what in whats[:MOST_SAID])]
            lines += [f"        and {len(whats) - MOST_SAID} more"] if len(whats) > MOST_SAID else []
            lines.append(f"        again: scripts/chaos --seed {seed} --only {shlex.quote(_only(name, who))}")
    return "\n".join(lines)


def _only(part: str, who: str) -> str:
    name = who.partition(": ")[2].partition(" [")[0]
    return part if " and " in name and name.endswith(" more") else f"{part}:{name}" if name else part


def _row(name: str, outcome: Outcome) -> tuple[str, ...]:
    left = ", ".join(f"{count} {kind}" for kind, count in outcome.left.items()) or "0"
    faults = f"{outcome.faults.total()} ({len(outcome.faults)})"
    figures = (outcome.executions, outcome.turns, outcome.tokens)
    bad = (outcome.wrong, outcome.lost, outcome.twice, outcome.errors.total())
    return (
        name,
        *(f"{figure:,}" for figure in figures),
        faults,
        *(f"{figure:,}" for figure in bad),
        left,
        f"{outcome.seconds:.0f}",
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))

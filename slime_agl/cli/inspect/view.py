"""Print recorded executions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slime_agl.cli.visible import json_line, safe_text, visible
from slime_agl.record.blot import MARK, needed_by_a_rerun
from slime_agl.record.run import Record, RecordedExecution
from slime_agl.report.evaluations import EvalFigures
from slime_agl.report.fate import TurnFate, fates
from slime_agl.report.passing import Figure
from slime_agl.report.summary import Pair, Row, row
from slime_agl.trace.turn import TURN_INDEX

TRAINED, MASKED, GLUE, FAILED = "bold black on green", "black on bright_black", "dim", "bold red"
LONGEST_TASK = 400
# Narrower terminals leave these figures out, to make room for the notes.
WIDE, LEFT_OUT = 100, ("masked", "logp")


def show_run(pairs: Sequence[Pair]) -> None:
    """Print a table of executions, with totals below."""
    console = Console()
    rows = [row(*pair) for pair in pairs]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), row_styles=("", "on grey7"))
    table.add_column("step", no_wrap=True)
    table.add_column("execution", no_wrap=True, overflow="ellipsis", max_width=14)
    figures = [name for name in _FIGURES if console.width >= WIDE or name not in LEFT_OUT]
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("notes", overflow="fold", ratio=1)
    for entry in rows:
        told = [_FIGURES[name](entry) for name in figures]
        table.add_row(safe_text(entry.step), safe_text(entry.name.removeprefix("ro-")), *told, _notes(entry))
    console.print(table)
    console.print(safe_text(_sums(rows), "bold"))


def show_evaluations(found: Sequence[EvalFigures]) -> None:
    """Print pass@k and mean@k of evaluations, each with its 95 % interval."""
    if not found:
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title="evaluations (95 % intervals)", title_justify="left")
    for name in ("step", "dataset", "agent"):
        table.add_column(name, overflow="fold")
    table.add_column("prompts", justify="right")
    table.add_column("figures", overflow="fold", ratio=1)
    for one in found:
        told = [f"{name} {_with_interval(value)}" for name, value in one.figures.items()]
        names = (one.step, one.dataset, one.agent or "all")
        table.add_row(*map(safe_text, names), str(one.prompts), safe_text("\n".join(told)))
    Console().print(table)


def _with_interval(value: Figure) -> str:
    return f"{value.value:.3f} ({value.low:.3f} to {value.high:.3f})"


def show_execution(record: Record, execution: RecordedExecution) -> None:
    """Print one execution, token by token."""
    console = Console()
    entry = row(record, execution)
    console.rule(safe_text(entry.name, "bold") + Text(f"  {visible(entry.step)}", "default"))
    facts = (
        f"reward {figure(entry.reward)} · turns {entry.turns}, segments {entry.segments} · "
        f"{entry.trained} tokens train, {entry.masked} do not, {entry.glue} are glue · {entry.seconds:.2f} s, "
        f"of which engine {entry.engine_seconds:.2f} s · weights {', '.join(entry.weights) or 'unnamed'}"
    )
    console.print(safe_text(facts))
    console.print(Text("task ", style="bold") + safe_text(_short(execution.task)))
    if execution.blotted:
        console.print(safe_text(blotted(execution.blotted), "yellow"))
    for after, dimensions in execution.rewards:
        told = ", ".join(f"{name} {'–' if value is None else f'{value:g}'}" for name, value in dimensions.items())
        console.print(
            Text("reward", "bold") + Text(f" {visible(told)} after {after} turn{'s' * (after != 1)}", "default")
        )
    if execution.failure:
        console.print(safe_text(f"failed: {execution.failure}\n{execution.error.rstrip()}", FAILED))
    console.print(Text(" trains ", TRAINED), Text(" does not ", MASKED), Text(" glue ", GLUE))
    depths = _depths(execution)
    for fate in fates(execution):
        console.print(Padding(_heading(fate), (1, 0, 0, 2 * depths[fate.turn.index])))
        console.print(Padding(_tokens(record, fate), (0, 0, 0, 2 * depths[fate.turn.index] + 1)))
    if execution.spans:
        console.print(_spans(execution))


def _heading(fate: TurnFate) -> Text:
    turn = fate.turn
    continues = "new" if turn.parent is None else f"continues {turn.parent}"
    cached = sum(part.cached_tokens for part in turn.parts)
    versions = list(dict.fromkeys(part.weight_version for part in turn.parts if part.weight_version))
    facts = [
        continues,
        f"{len(turn.new_ids)} + {turn.output_length} tokens",
        f"{cached} cached" * bool(cached),
        turn.finish,
        f"weights {' then '.join(versions)}" * bool(versions),
        f"{turn.ended - turn.started:.2f} s",
        f"fork: {turn.fork}" * bool(turn.fork),
    ]
    text = Text(f"turn {turn.index}  ", style="bold") + safe_text(" · ".join(filter(None, facts)), "cyan")
    return text + safe_text(f"  untrained: {fate.why}" if fate.why else "", "yellow")


def _tokens(record: Record, fate: TurnFate) -> Text:
    text = safe_text("".join(record.texts(fate.turn.new_ids)), GLUE)
    spoken = zip(record.texts(fate.turn.output_ids()), fate.trained, strict=True)
    for trained, span in groupby(spoken, key=lambda pair: pair[1]):
        text.append(visible("".join(piece for piece, _ in span)), style=TRAINED if trained else MASKED)
    return text


def _spans(execution: RecordedExecution) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title="spans", title_justify="left")
    for name in ("at", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("name", overflow="fold")
    table.add_column("attributes", overflow="fold")
    for span in execution.spans:
        table.add_row(
            f"{span['at']:.2f}", f"{span['seconds']:.2f}", safe_text(span["name"]), safe_text(_attributes(span))
        )
    return table


def _attributes(span: Mapping[str, Any]) -> str:
    """A line per attribute; for a turn, which is shown above, its index alone."""
    found = span["attributes"]
    if TURN_INDEX in found:
        return f"turn {found[TURN_INDEX]}"
    return "\n".join(f"{name}={value}"[:LONGEST_TASK] for name, value in found.items())


def _depths(execution: RecordedExecution) -> dict[int, int]:
    """Indentation per turn: a later sibling is one deeper than its parent."""
    ledger, depths = execution.ledger, {}
    for turn in ledger.turns:
        base = 0 if turn.parent is None else depths[turn.parent]
        depths[turn.index] = base + (turn.parent is not None and ledger.children(turn.parent)[0] != turn.index)
    return depths


_FIGURES: dict[str, Callable[[Row], str]] = {
    "reward": lambda entry: figure(entry.reward),
    "turns": lambda entry: str(entry.turns),
    "segs": lambda entry: str(entry.segments),
    "trained": lambda entry: str(entry.trained),
    "masked": lambda entry: str(entry.masked),
    "logp": lambda entry: figure(entry.logprob, 2),
    "sec": lambda entry: f"{entry.seconds:.1f}",
}


def _notes(entry: Row) -> Text:
    notes = safe_text(entry.failure, FAILED)
    more = [f"{reason} ×{count}" for reason, count in entry.forks.items()]
    more += [f"{entry.retries} retries"] * bool(entry.retries)
    more += ["blotted"] * bool(needed_by_a_rerun(entry.blotted))
    return notes + safe_text(("  " if entry.failure and more else "") + ", ".join(more), "yellow")


def _sums(rows: Sequence[Row]) -> str:
    rewards = [entry.reward for entry in rows if entry.reward is not None]
    failures = Counter(entry.failure for entry in rows if entry.failure)
    mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "no reward"
    failed = ", ".join(f"{count} {failure}" for failure, count in failures.items())
    return (
        f"{len(rows)} execution{'s' * (len(rows) != 1)}, {mean}, {sum(entry.trained for entry in rows)} tokens train, "
        f"{sum(entry.masked for entry in rows)} do not" + (f"; failed: {failed}" if failed else "")
    )


def blotted(places: Mapping[str, int]) -> str:
    """Say which credentials were removed from a record, and whether a rerun needs them."""
    told = ", ".join(f"{place} {count}" for place, count in places.items())
    rerun = "; it cannot be rerun exactly" if needed_by_a_rerun(places) else ""
    return f"credentials blotted out ({MARK}): {told}{rerun}"


def figure(value: float | None, digits: int = 3) -> str:
    """Format a number, '–' for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def _short(task: object) -> str:
    text = task if isinstance(task, str) else json_line(task).rstrip()
    return text if len(text) <= LONGEST_TASK else text[:LONGEST_TASK] + " …"

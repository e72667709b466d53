"""Print the findings of `slime-agl audit`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slime_agl.chat.proof.report import HIDDEN, AuditReport, KindReport
from slime_agl.chat.proof.roundtrip import NOT_SHOWN
from slime_agl.chat.template.seams import BEHIND, ELSEWHERE
from slime_agl.cli.visible import safe_text

REFUSED = "template_refused"
WIDTH = 80
REASONS = {
    REFUSED: "the template rejects it",
    "no_marker": "no stop token follows it",
    "tail_differs": "depends on the text of the turn",
    "sentinel_lost": "the turn is omitted",
    "sentinel_repeated": "the turn is written more than once",
    "marker_merged": "the stop token merges with what follows",
    "marker_misplaced": "a stop token occurs within the turn",
    BEHIND: "the first stop token comes after it",
    ELSEWHERE: "moved elsewhere in the prompt",
}
SPEAKERS = {"tool": "tool result", "system": "system message", "user": "user message"}
WHAT = {
    "again": "the same again",
    "call": "call left open",
    "parallel_calls": "calls left open",
    "tool": "tool result",
    "parallel_tools": "results of parallel calls",
    "prefill": "assistant prefill",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFindings:
    """readers: the parsers of calls and reasoning. trips: see `round_trips`."""

    model: str
    report: AuditReport
    history: str
    readers: Mapping[str, str]
    trips: Mapping[str, str]

    @property
    def forks(self) -> dict[str, str]:
        """Kinds that fork, with the reason; under history 'template' also those that would rewrite the history."""
        return {kind: why for kind, found in self.report.kinds.items() if (why := self.fork(found))}

    def fork(self, found: KindReport) -> str:
        """Return why a kind forks, '' if it does not."""
        if found.method == "fork":
            return found.reason
        rewritten = found.rewrites(reasoning=False) or found.rewrites(reasoning=True)
        return "history_rewritten" if self.history == "template" and rewritten else ""

    def as_dict(self) -> dict[str, object]:
        return {
            "model": self.model,
            "history": self.history,
            **self.report.as_dict(),
            "forks": self.forks,
            "parsers": dict(self.readers),
            "round_trips": {name: what or "ok" for name, what in self.trips.items()},
        }


def show(found: AuditFindings) -> None:
    """Print the findings to stdout."""
    console = Console(highlight=False)
    console.print(Text("chat template of ") + safe_text(found.model, "bold"))
    console.print(_facts(found))
    console.print()
    console.print(_kinds(found))
    console.print()
    for note in _notes(found):
        console.print(note)


def _facts(found: AuditFindings) -> Table:
    report = found.report
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    stops = " ".join(report.stop_tokens) or "none"
    calls = "several calls per turn" if report.parallel_calls else "one call per turn"
    thinks = "can be kept in history" if report.reasoning else "never kept in history"
    hidden = Text(", ".join(HIDDEN[name] for name in report.hidden) or "nothing", "bold red" if report.hidden else "")
    rows = [
        ("a turn ends with", stops if report.closes_turns else f"{stops} (which opens the next)"),
        ("tools", f"rendered; {calls}" if report.tools else f"not rendered; {calls}"),
        ("images", "rendered" if report.images else "not rendered; requests with images are refused"),
        ("hidden from the model", hidden),
        ("system messages", report.system_messages() or "as sent"),
        ("reasoning", thinks + ("; the prompt opens <think>" if report.opens_think else "")),
        ("tool-call ids", "nine letters and digits only (ours comply)" if report.nine_letter_ids else "any"),
        (f"calls by {found.readers['tool_calls']}", _trips(found, "call", "parallel_calls")),
        (f"reasoning by {found.readers['reasoning']}", _trips(found, "reasoning", "reasoning_and_call")),
    ]
    for name, value in rows:
        table.add_row(safe_text(name), value if isinstance(value, Text) else safe_text(value))
    return table


def _trips(found: AuditFindings, *names: str) -> Text:
    if all(found.trips[name] == NOT_SHOWN for name in names):
        return Text(NOT_SHOWN, "dim")
    out = Text()
    for name in names:
        what = found.trips[name]
        style = "green" if not what else "dim" if what == NOT_SHOWN else "red"
        verdict = "read back" if not what else "not rendered" if what == NOT_SHOWN else "not read"
        out.append("; " if out else "").append(f"{name.replace('_', ' ')}: ").append(verdict, style)
    return out


def _kinds(found: AuditFindings) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("what comes after a turn", no_wrap=True)
    table.add_column("tokens so far", no_wrap=True)
    table.add_column("earlier turns in the template")
    for kind, one in found.report.kinds.items():
        table.add_row(safe_text(_words(kind)), _verdict(found, one), _history(found, one))
    return table


def _words(kind: str) -> str:
    return ", ".join(WHAT.get(part, part) for part in kind.split("_then_"))


def _verdict(found: AuditFindings, one: KindReport) -> Text:
    if one.reason == REFUSED:
        return Text("refused", "bold red")
    if found.fork(one):
        return Text("fork", "bold yellow")
    if one.hides:
        return Text("hidden", "bold red")
    return Text("extended", "green") if one.method == "short" else Text("extended *", "green")


def _history(found: AuditFindings, one: KindReport) -> Text:
    if one.method == "fork":
        return safe_text(REASONS.get(one.reason, one.reason))
    if one.hides:
        return Text("the " + " and ".join(SPEAKERS[role] for role in one.hides) + " is omitted", "red")
    if one.rewrites(reasoning=False):
        return Text("rewritten")
    return Text("without their reasoning" if one.rewrites(reasoning=True) else "as sampled", "dim")


def _notes(found: AuditFindings) -> list[Text]:
    kinds = found.report.kinds.values()
    notes = []
    if any(one.reason == REFUSED for one in kinds):
        notes.append("refused: the agent gets a 400 with the template's own message.")
    if any(found.fork(one) and one.reason != REFUSED for one in kinds):
        notes.append("fork: such a request gets its own prompt and becomes its own Sample.")
    for stop in found.report.missing_stops:
        words = f"stop token missing? {stop.token} (id {stop.id}) is where a turn ends: {stop.advice()}."
        notes += textwrap.wrap(words, WIDTH)
    if found.report.hidden:
        notes.append("hidden: the model never sees it; try another --chat-template.")
    if any(one.method == "real" for one in kinds):
        notes.append("* the template looks back, so each such turn renders the whole conversation.")
    if any(one.rewrites(reasoning=True) for one in kinds if one.method != "fork"):
        notes.append(
            "agl.history: append keeps earlier turns as sampled, whatever the template writes."
            if found.history == "append"
            else "agl.history: template forks where earlier turns would be rewritten."
        )
    if found.report.history_kwargs:
        kwargs = json.dumps(dict(found.report.history_kwargs))
        notes.append(f"--apply-chat-template-kwargs '{kwargs}' keeps reasoning.")
    if any(what not in ("", NOT_SHOWN) for what in found.trips.values()):
        notes.append("not read: the agent gets raw text; name the model's parsers (--tool-call-parser,")
        notes.append("--reasoning-parser). --json has what was read instead.")
    return [safe_text(note) for note in notes]

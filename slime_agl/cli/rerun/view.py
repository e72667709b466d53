"""Print rerun executions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slime_agl.cli.inspect.view import blotted, figure
from slime_agl.cli.visible import safe_text, visible
from slime_agl.rerun.outcome import REFUSED, Outcome

STYLES = {"same": "green", "diverged": "bold yellow", "failed": "bold red"}
CHANGED = "bold magenta"


def show_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print a table of all, details of those that differ, and totals."""
    console = Console()
    console.print(_table(outcomes))
    for outcome in outcomes:
        if not outcome.as_recorded:
            _show(console, outcome)
    console.print(_sums(outcomes))


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), row_styles=("", "on grey7"))
    table.add_column("step", no_wrap=True)
    table.add_column("execution", no_wrap=True, overflow="ellipsis", max_width=14)
    table.add_column("verdict", no_wrap=True)
    table.add_column("turns", justify="right", no_wrap=True)
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("notes", overflow="fold", ratio=1)
    for outcome in outcomes:
        table.add_row(
            safe_text(outcome.step),
            safe_text(outcome.name.removeprefix("ro-")),
            Text(outcome.verdict, STYLES[outcome.verdict]),
            f"{outcome.matched}/{outcome.turns}",
            _reward(outcome),
            safe_text(_note(outcome)),
        )
    return table


def _reward(outcome: Outcome) -> Text:
    was, now = figure(outcome.recorded_reward), figure(outcome.reward)
    if not outcome.reward_changed:
        return Text(now) if outcome.rewards is not None else Text(f"({was})", "dim")
    return Text(f"{was} → {now}" if was != now else f"{now} *", CHANGED)


def _note(outcome: Outcome) -> str:
    notes = [outcome.failure] if outcome.failure not in ("", REFUSED) else []
    if outcome.divergence is not None:
        where = f"turn {outcome.divergence.turn}" if outcome.divergence.turn is not None else "its first prompt"
        how = {"early": "ended before", "more": "continued after"}.get(outcome.divergence.kind, "differs at")
        notes.append(f"{how} {where}")
    return ", ".join(notes)


def _show(console: Console, outcome: Outcome) -> None:
    console.rule(safe_text(f"{outcome.name}  {outcome.step}", "bold"))
    for words in _words(outcome):
        console.print(words)
    if outcome.divergence is not None and outcome.divergence.diff:
        console.print(_coloured(outcome.divergence.diff))
    if outcome.failure == REFUSED:
        console.print(safe_text(f"the agent gave up there; it called from {_first_frame(outcome.error)}"))
    elif outcome.failure:
        lines = [line for line in outcome.error.splitlines() if line.strip(" ^~")]
        console.print(safe_text("\n".join(lines), "red"), soft_wrap=True)


def _words(outcome: Outcome) -> list[Text]:
    words = []
    if outcome.blotted:
        words.append(safe_text(blotted(outcome.blotted), STYLES["diverged"]))
    if outcome.divergence is not None:
        attempt = f"attempt {outcome.divergence.attempt}, " if outcome.attempts[0] > 1 else ""
        words.append(safe_text(attempt + outcome.divergence.words, STYLES["diverged"]))
    if outcome.attempts[0] != outcome.attempts[1]:
        recorded, rerun = outcome.attempts
        words.append(Text(f"{recorded} attempts were recorded, the agent ended well in attempt {rerun}"))
    if outcome.failure not in (outcome.recorded_failure, REFUSED):
        was, now = (name or "ended well" for name in (outcome.recorded_failure, outcome.failure))
        words.append(safe_text(f"recorded: {was}; rerun: {now}", STYLES["failed" if outcome.failure else "diverged"]))
    if outcome.reward_changed:
        words.append(safe_text(f"reward {_all(outcome.recorded_rewards)} → {_all(outcome.rewards)}", CHANGED))
    return words


def _first_frame(error: str) -> str:
    """The agent's own frame in a traceback: its first."""
    return next((line.strip() for line in error.splitlines() if line.lstrip().startswith("File ")), "a place unknown")


def _coloured(diff: Sequence[str]) -> Text:
    text = Text()
    for line in diff:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
        text.append(visible(line) + "\n", "bold" if line.startswith(("+++", "---")) else style)
    text.rstrip()
    return text


def _sums(outcomes: Sequence[Outcome]) -> Text:
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    changed = sum(outcome.reward_changed for outcome in outcomes)
    told = ", ".join(f"{verdicts[name]} {name}" for name in STYLES if verdicts[name])
    text = Text(f"{len(outcomes)} executions rerun: {told}; ", "bold")
    return text + Text(f"{changed} {'reward' if changed == 1 else 'rewards'} changed", CHANGED if changed else "bold")


def _all(rewards: tuple | None) -> str:
    told = [str(reward) if isinstance(reward, dict) else figure(reward) for reward in rewards or ()]
    return told[0] if len(set(told)) == 1 else f"[{', '.join(told)}]"

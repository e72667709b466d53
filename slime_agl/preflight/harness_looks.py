"""What a program did in a dry run: how it ended, what its tests said, and which conversations it started, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from slime_agl.record.run import RecordedExecution
from slime_agl.report.checks import Finding
from slime_agl.trace.turn import Turn

Decode = Callable[[Sequence[int]], str]

SPAN = "slime_agl.harness"
MESSAGE = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
# What a side conversation is for, by words of its system message or its last one.
KINDS = (
    ("a title", re.compile(r"\btitle\b", re.I)),
    ("compaction", re.compile(r"\bsummar|\bcompact|\bcondense", re.I)),
    ("a safety check of a command", re.compile(r"\bcommand (?:prefix|injection)\b", re.I)),
)
SHOWN = 120


def look_at_harness(executions: Sequence[RecordedExecution], decode: Decode) -> list[Finding]:
    """One finding per run of the program, and one on what it forked. decode: ids to text with special tokens."""
    return [*_ended(executions), _forks(executions, decode)]


def _ended(executions: Sequence[RecordedExecution]) -> Iterator[Finding]:
    for execution in executions:
        for span in execution.spans:
            if span["name"] != SPAN:
                continue
            told: dict[str, Any] = span["attributes"]
            how = told["harness.why"] or f"it ended with status {told['harness.status']}"
            reward = told.get("harness.reward")
            words = f"{how}; {told['harness.changed']} files changed; " + (
                "not graded" if reward is None else f"reward {reward:g}"
            )
            if tests := str(told.get("harness.tests", "")).strip():
                words += f"; the tests said: {tests[-SHOWN:]}"
            verdict = "look" if told["harness.why"] else "pass"
            yield Finding(f"{told['harness.program']} on {told['harness.task']}", verdict, words)


def _forks(executions: Sequence[RecordedExecution], decode: Decode) -> Finding:
    """Say what each conversation but the first was for."""
    found: Counter[str] = Counter()
    for execution in executions:
        ledger = execution.ledger
        roots = [turn for turn in ledger.turns if turn.parent is None]
        for turn in roots[1:]:
            found[_why(turn, *(decode(ledger.prompt_ids(root.index)) for root in (roots[0], turn)))] += 1
    name = "what forked"
    if not found:
        return Finding(name, "pass", "nothing: each run of the program is one conversation")
    return Finding(name, "look", "; ".join(f"{words} ×{count}" for words, count in found.items()))


def _why(turn: Turn, first: str, forked: str) -> str:
    (main, _), (system, last) = _ends(first), _ends(forked)
    quoted = f"{turn.fork}, {' '.join(last.split())[:SHOWN]!r}"
    if system == main:
        kind = next((kind for kind, words in KINDS[1:2] if words.search(last)), "a rewritten history or a subagent")
        return f"{kind} ({quoted})"
    for kind, words in KINDS:
        if words.search(system[:1000]) or words.search(last[:1000]):
            return f"{kind} ({quoted})"
    same = system[:60] == main[:60]
    return f"{'a changed system prompt' if same else 'a subagent or a side call'} ({quoted})"


def _ends(text: str) -> tuple[str, str]:
    """The first system message of a prompt, '' without one, and its last message."""
    said = MESSAGE.findall(text)
    if not said:
        return text[:2000], text[-2000:]
    said = said[:-1] if said[-1][0] == "assistant" and not said[-1][1].strip() and len(said) > 1 else said
    return (said[0][1] if said[0][0] == "system" else ""), said[-1][1]

"""Answers like each agent's model, with occasional errors. For run.sh --local and tests."""

from __future__ import annotations

import re


def answer(said: list[tuple[str, str]], luck: float) -> str:
    """Answer correctly with luck below 0.5; a selector takes the majority answer."""
    (_, text), *_ = said
    if "`Choice: NUMBER`" in text:
        found = re.findall(r"Answer: (-?\d+)", text)
        best = max(found, key=found.count)
        return f"Choice: {found.index(best) + 1}"
    steps = re.findall(r"has (\d+) marbles|(wins|loses) (\d+)|(doubles) them", text)
    count, shown = 0, []
    for start, change, by, doubles in steps:
        before = count
        count = int(start) if start else 2 * count if doubles else count + (int(by) if change == "wins" else -int(by))
        if not start:
            shown.append(f"{before} -> {count}")
    return f"{', '.join(shown)}\nAnswer: {count if luck < 0.5 else count + 1 + int(luck * 4)}"

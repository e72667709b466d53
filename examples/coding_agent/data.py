"""Write train.jsonl and eval.jsonl: small repositories with one fault each, and tests that find it.

    python data.py

A repository has a faulty module, an unrelated one, and tests of both.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROWS = {"train": 72, "eval": 12}


@dataclass(frozen=True)
class Module:
    """source: the correct text. faults: (correct line, wrong line, symptom). checks: expressions that must be true."""

    source: str
    faults: tuple[tuple[str, str, str], ...]
    checks: tuple[str, ...]


MODULES = {
    "clamp": Module(
        "def clamp(value, low, high):\n    if value < low:\n        return low\n    return min(value, high)\n",
        (
            ("min(value, high)", "max(value, high)", "clamp(1, 0, 3) gives 3, not 1"),
            ("        return low", "        return high", "clamp(-1, 0, 3) gives 3, not 0"),
        ),
        ("clamp(1, 0, 3) == 1", "clamp(-1, 0, 3) == 0", "clamp(9, 0, 3) == 3"),
    ),
    "median": Module(
        "def median(values):\n    ordered = sorted(values)\n    half = len(ordered) // 2\n    if len(ordered) % 2:\n"
        "        return ordered[half]\n    return (ordered[half - 1] + ordered[half]) / 2\n",
        (
            ("sorted(values)", "list(values)", "median([3, 1, 2]) gives 1, not 2"),
            ("ordered[half - 1]", "ordered[half - 2]", "median([1, 2, 3, 4]) gives 2.0, not 2.5"),
        ),
        ("median([3, 1, 2]) == 2", "median([1, 2, 3, 4]) == 2.5"),
    ),
    "chunks": Module(
        "def chunks(items, size):\n    return [items[at : at + size] for at in range(0, len(items), size)]\n",
        (
            ("range(0, len(items), size)", "range(0, len(items) - 1, size)", "chunks([1, 2, 3], 2) loses the 3"),
            ("at + size]", "at + size - 1]", "chunks([1, 2], 2) gives [[1]], not [[1, 2]]"),
        ),
        ("chunks([1, 2, 3], 2) == [[1, 2], [3]]", "chunks([1, 2], 2) == [[1, 2]]", "chunks([], 2) == []"),
    ),
    "slugs": Module(
        "def slugs(title):\n    words = title.lower().split()\n    return '-'.join(words)\n",
        (
            ("title.lower().split()", "title.split()", "slugs('Big Day') keeps its capitals"),
            ("'-'.join", "'_'.join", "slugs('big day') has an underscore where a hyphen belongs"),
        ),
        ("slugs('Big Day') == 'big-day'", "slugs('  a  b ') == 'a-b'"),
    ),
    "primes": Module(
        "def primes(limit):\n    found = []\n    for number in range(2, limit + 1):\n"
        "        if all(number % prime for prime in found):\n            found.append(number)\n    return found\n",
        (
            ("range(2, limit + 1)", "range(2, limit)", "primes(7) lacks the 7"),
            ("range(2, limit + 1)", "range(1, limit + 1)", "primes(7) begins with 1"),
        ),
        ("primes(7) == [2, 3, 5, 7]", "primes(1) == []"),
    ),
    "wallet": Module(
        "def wallet(start, changes):\n    balance = start\n    for change in changes:\n"
        "        if balance + change >= 0:\n            balance += change\n    return balance\n",
        (
            ("balance + change >= 0", "balance + change > 0", "wallet(5, [-5]) refuses to pay the last coin"),
            ("balance += change", "balance = change", "wallet(5, [3]) gives 3, not 8"),
        ),
        ("wallet(5, [-5]) == 0", "wallet(5, [3]) == 8", "wallet(5, [-6, 1]) == 6"),
    ),
    "roman": Module(
        "PARTS = ((10, 'X'), (9, 'IX'), (5, 'V'), (4, 'IV'), (1, 'I'))\n\n\ndef roman(number):\n    text = ''\n"
        "    for value, sign in PARTS:\n        while number >= value:\n            text += sign\n"
        "            number -= value\n    return text\n",
        (
            ("(4, 'IV'), ", "", "roman(4) gives IIII, not IV"),
            ("number >= value", "number > value", "roman(5) gives IVI, not V"),
        ),
        ("roman(4) == 'IV'", "roman(5) == 'V'", "roman(19) == 'XIX'"),
    ),
}


def repository(faulty: str, fault: int, other: str) -> dict[str, str]:
    """Return a repository's files by path."""
    right, wrong, _ = MODULES[faulty].faults[fault]
    checks = [(name, check) for name in (faulty, other) for check in MODULES[name].checks]
    tests = [f"from {name} import {name}" for name in sorted((faulty, other))]
    tests += ["", *(f'assert {check}, "{name}: {check}"' for name, check in checks), 'print("all tests pass")', ""]
    return {
        f"{faulty}.py": MODULES[faulty].source.replace(right, wrong),
        f"{other}.py": MODULES[other].source,
        "tests.py": "\n".join(tests),
    }


def rows() -> dict[str, list[dict]]:
    """Rows by file; the files share no repository."""
    cases = [(name, fault, other) for name in MODULES for fault in (0, 1) for other in MODULES if other != name]
    random.Random(2).shuffle(cases)
    made = []
    for faulty, fault, other in cases[: sum(ROWS.values())]:
        issue = f"{MODULES[faulty].faults[fault][2]}. (The project `{faulty}_and_{other}`.)"
        files = repository(faulty, fault, other)
        made.append({"prompt": issue, "label": f"{faulty}.py", "metadata": {"files": files}})
    return {"train": made[: ROWS["train"]], "eval": made[ROWS["train"] :]}


if __name__ == "__main__":
    for name, made in rows().items():
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")

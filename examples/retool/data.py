"""Write train.jsonl and eval.jsonl: problems that are tedious by hand and short to program.

python data.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

HERE = Path(__file__).parent
ROWS = {"train": 96, "eval": 12}

# A problem and the expression whose value is the answer.
PROBLEMS = {
    "multiples": (
        "What is the sum of all whole numbers below {n} that are divisible by {a} or by {b}?",
        "sum(x for x in range({n}) if x % {a} == 0 or x % {b} == 0)",
    ),
    "primes": (
        "How many primes are there below {n}?",
        "sum(all(x % d for d in range(2, int(x**0.5) + 1)) for x in range(2, {n}))",
    ),
    "digits": ("What is the sum of the decimal digits of {a} to the power of {b}?", "sum(map(int, str({a}**{b})))"),
    "squares": (
        "How many whole numbers from 1 to {n} have a square that ends in {d}?",
        "sum(x * x % 10 == {d} for x in range(1, {n} + 1))",
    ),
    "divisors": ("How many divisors does {n} have?", "sum({n} % x == 0 for x in range(1, {n} + 1))"),
}


def rows() -> dict[str, list[dict]]:
    """Rows by file; the files share no problem."""
    dice = random.Random(13)
    made: dict[str, dict] = {}
    while len(made) < sum(ROWS.values()):
        kind = dice.choice(sorted(PROBLEMS))
        problem, expression = PROBLEMS[kind]
        numbers = {"n": dice.randint(300, 3000), "a": dice.randint(3, 13), "b": dice.randint(14, 40)}
        numbers["d"] = dice.choice([1, 4, 5, 6, 9])
        question = problem.format(**numbers)
        label = str(eval(expression.format(**numbers)))
        made[question] = {"prompt": question, "label": label, "metadata": {"kind": kind}}
    split = list(made.values())
    return {"train": split[: ROWS["train"]], "eval": split[ROWS["train"] :]}


if __name__ == "__main__":
    for name, made in rows().items():
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")

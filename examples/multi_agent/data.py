"""Write train.jsonl and eval.jsonl: problems whose answer takes a few steps, so that solvers sometimes fail.

python data.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

HERE = Path(__file__).parent
ROWS = {"train": 80, "eval": 10}
NAMES = ("Ada", "Bo", "Chen", "Dora", "Emre", "Fay")


def problem(dice: random.Random) -> dict:
    """Make a chain of three or four changes to a number of marbles."""
    name, start = dice.choice(NAMES), dice.randint(10, 60)
    count, steps = start, [f"{name} has {start} marbles"]
    for _ in range(dice.randint(3, 4)):
        match dice.choice(["wins", "loses", "doubles"]):
            case "wins":
                change = dice.randint(5, 40)
                count, step = count + change, f"wins {change}"
            case "loses":
                change = min(count, dice.randint(1, 30))
                count, step = count - change, f"loses {change}"
            case _:
                count, step = 2 * count, "doubles them"
        steps.append(step)
    question = f"{', then '.join(steps)}. How many marbles does {name} have now?"
    return {"prompt": question, "label": str(count), "metadata": {"steps": len(steps) - 1}}


def rows() -> dict[str, list[dict]]:
    """Rows by file; the files share no problem."""
    dice = random.Random(11)
    made: dict[str, dict] = {}
    while len(made) < sum(ROWS.values()):
        row = problem(dice)
        made[row["prompt"]] = row
    split = list(made.values())
    return {"train": split[: ROWS["train"]], "eval": split[ROWS["train"] :]}


if __name__ == "__main__":
    for name, made in rows().items():
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")

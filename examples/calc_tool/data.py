"""Write train.jsonl and eval.jsonl: word problems with numbers that are tedious to multiply by hand.

python data.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

HERE = Path(__file__).parent
ROWS = {"train": 96, "eval": 12}

# A story and the expression that solves it.
STORIES = {
    "bakery": (
        "A bakery packs {a} boxes of {b} rolls and sells {c} rolls. How many rolls are left?",
        "{a} * {b} - {c}",
    ),
    "school": ("A school has {a} classes of {b} pupils and {c} teachers. How many people is that?", "{a} * {b} + {c}"),
    "cinema": (
        "A cinema sells {a} tickets at {c} and {b} tickets at {d}. How much does it earn?",
        "{a} * {c} + {b} * {d}",
    ),
    "garden": (
        "A garden is {a} m long and {b} m wide, with a pond of {c} square metres. How large is the rest?",
        "{a} * {b} - {c}",
    ),
    "trains": (
        "{a} trains carry {b} people each, {d} trains carry {c} each. How many more do the first carry?",
        "{a} * {b} - {d} * {c}",
    ),
}


def rows() -> dict[str, list[dict]]:
    """Rows by file; the files share no problem."""
    dice = random.Random(7)
    made: dict[str, dict] = {}
    while len(made) < sum(ROWS.values()):
        kind = dice.choice(sorted(STORIES))
        story, expression = STORIES[kind]
        numbers = {
            "a": dice.randint(40, 99),
            "b": dice.randint(20, 80),
            "c": dice.randint(11, 400),
            "d": dice.randint(2, 9),
        }
        question, value = story.format(**numbers), eval(expression.format(**numbers))
        made[question] = {"prompt": question, "label": str(value), "metadata": {"kind": kind}}
    split = list(made.values())
    return {"train": split[: ROWS["train"]], "eval": split[ROWS["train"] :]}


if __name__ == "__main__":
    for name, made in rows().items():
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")

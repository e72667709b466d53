"""Write train.jsonl and eval.jsonl: lists of numbers, most short, a few long.

python data.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path

HERE = Path(__file__).parent
ROWS = {"train": 96, "eval": 12}
LONGEST = 24


def rows() -> dict[str, list[dict]]:
    """Rows by file; the files share no list."""
    dice = random.Random(17)
    made: dict[str, dict] = {}
    while len(made) < sum(ROWS.values()):
        length = min(LONGEST, 1 + int(dice.paretovariate(1.1)))
        numbers = [dice.randint(10, 99) for _ in range(length)]
        prompt = " ".join(map(str, numbers))
        made[prompt] = {"prompt": prompt, "label": str(sum(numbers)), "metadata": {"turns": length}}
    split = list(made.values())
    return {"train": split[: ROWS["train"]], "eval": split[ROWS["train"] :]}


if __name__ == "__main__":
    for name, made in rows().items():
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")

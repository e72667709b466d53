"""Write train.jsonl and eval.jsonl: pairs of numbers to compare.

python -m distillation.data       # in the parent folder
"""

from __future__ import annotations

import json
import random
from pathlib import Path

SIZES = {"train": 96, "eval": 12}


def rows() -> dict[str, list[dict]]:
    """Return the rows of each file; no pair is in both."""
    luck = random.Random(0)
    pairs: dict[tuple[int, int], None] = {}
    while len(pairs) < sum(SIZES.values()):
        one, other = luck.sample(range(10, 100), 2)
        pairs.setdefault((one, other))
    made = iter(pairs)
    return {name: [_row(*next(made)) for _ in range(size)] for name, size in SIZES.items()}


def _row(one: int, other: int) -> dict:
    question = f"Which number is larger, {one} or {other}? Answer with the number."
    return {"prompt": question, "label": f"{max(one, other)}", "metadata": {"gap": abs(one - other)}}


def main() -> None:
    for name, made in rows().items():
        lines = "".join(json.dumps(row) + "\n" for row in made)
        Path(__file__).with_name(f"{name}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Write train.jsonl and eval.jsonl: requests for a sentence with three given words.

python -m workers.data       # in the parent folder
"""

from __future__ import annotations

import json
import random
from pathlib import Path

NOUNS = "river lamp garden train clock letter bridge mirror winter market ladder candle harbour violin window".split()
VERBS = "carry open follow paint repair borrow forget measure whisper gather".split()
SIZES = {"train": 96, "eval": 12}


def rows() -> dict[str, list[dict]]:
    """Return the rows of each file; no request is in both."""
    luck = random.Random(0)
    kinds = [(one, other, verb) for one in NOUNS for other in NOUNS if one < other for verb in VERBS]
    luck.shuffle(kinds)
    made = iter(kinds)
    return {name: [_row(*next(made)) for _ in range(size)] for name, size in SIZES.items()}


def _row(one: str, other: str, verb: str) -> dict:
    request = f"Write one short sentence with the words {one}, {other} and {verb}."
    return {"prompt": request, "label": f"{one} {other} {verb}", "metadata": {"verb": verb}}


def main() -> None:
    for name, made in rows().items():
        lines = "".join(json.dumps(row) + "\n" for row in made)
        Path(__file__).with_name(f"{name}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()

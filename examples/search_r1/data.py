"""Write corpus.jsonl, train.jsonl and eval.jsonl: an invented country that no model knows from training.

    python data.py

Every question needs two or three passages, each of which names what to search for next.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

HERE = Path(__file__).parent
ROWS = {"train": 96, "eval": 12}
TOWNS, PEOPLE, RIVERS = 40, 40, 8
DISHES = ("barley soup", "smoked eel", "plum dumplings", "goat cheese", "rye bread", "pickled beets", "honey cake")
TRADES = ("painter", "astronomer", "bridge builder", "poet", "botanist", "clockmaker", "composer")
SYLLABLES = (
    ("Bar", "Cor", "Dun", "El", "Fen", "Gal", "Hol", "Ister", "Kel", "Lor"),
    ("a", "e", "i", "o"),
    ("bach", "dorn", "field", "grad", "holm", "mere", "ton", "wick"),
)
FIRST = ("Anselm", "Brida", "Corin", "Delia", "Edric", "Fenna", "Gareth", "Hilde", "Ivor", "Jorun")
LAST = ("Ashdown", "Brook", "Calder", "Dray", "Ember", "Frost", "Gale", "Hart")


def facts() -> tuple[list[dict], list[dict]]:
    """Make towns (river, dish, year) and people (birthplace, trade, teacher)."""
    dice = random.Random(3)
    names = dice.sample(["".join(parts) for parts in itertools.product(*SYLLABLES)], TOWNS + RIVERS)
    rivers = names[TOWNS:]
    towns = [
        {"name": name, "river": dice.choice(rivers), "dish": dice.choice(DISHES), "year": dice.randint(900, 1700)}
        for name in names[:TOWNS]
    ]
    called = dice.sample([f"{first} {last}" for first in FIRST for last in LAST], PEOPLE)
    people = [
        {"name": name, "town": dice.choice(towns), "trade": dice.choice(TRADES), "teacher": called[at - 1]}
        for at, name in enumerate(called)
    ]
    return towns, people


def corpus() -> list[dict]:
    towns, people = facts()
    texts = [
        f"{town['name']} is a town on the river {town['river']}. It was founded in {town['year']} and is known for its "
        f"{town['dish']}."
        for town in towns
    ]
    texts += [
        f"{who['name']} was a {who['trade']}, born in {who['town']['name']}, and a pupil of {who['teacher']}."
        for who in people
    ]
    return [{"text": text} for text in texts]


def rows() -> dict[str, list[dict]]:
    """Questions by file; the files share none."""
    _, people = facts()
    by_name = {who["name"]: who for who in people}
    asked = []
    for who in people:
        name, town, teacher = who["name"], who["town"], by_name[who["teacher"]]
        asked += [
            (f"On which river is the town where {name} was born?", town["river"], 2),
            (f"In which year was the birthplace of {name} founded?", str(town["year"]), 2),
            (f"For which food is the town known where the teacher of {name} was born?", teacher["town"]["dish"], 3),
        ]
    random.Random(5).shuffle(asked)
    made = [{"prompt": question, "label": label, "metadata": {"hops": hops}} for question, label, hops in asked]
    return {"train": made[: ROWS["train"]], "eval": made[ROWS["train"] : sum(ROWS.values())]}


if __name__ == "__main__":
    for name, made in {**rows(), "corpus": corpus()}.items():
        (HERE / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")

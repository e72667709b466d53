"""Further tasks in the words of `boxes`; their agents are in `slime_agl.testing.tasks`.

`copies`: the user says a code and the model has to say it again, several times in one conversation. `errands`: a
planner opens a box, a helper in a conversation of its own is shown what lies in it and reports, and the planner passes
that on.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from slime_agl.local.train.boxes import CODES, Said, Talk, aimless

COPIES = 8
PROMPTS = 6


def copy_rows(seed: int = 0) -> list[dict[str, str]]:
    """Return prompts of COPIES codes each, in which all codes are equally frequent."""
    chance = random.Random(seed)
    words = [code for code in CODES for _ in range(PROMPTS * COPIES // len(CODES))]
    chance.shuffle(words)
    prompts = [" ".join(words[at : at + COPIES]) for at in range(0, len(words), COPIES)]
    return [{"prompt": prompt, "label": prompt} for prompt in prompts]


def write_copy_rows(path: Path) -> Path:
    """Write the rows as slime's --prompt-data."""
    path.write_text("".join(json.dumps(row) + "\n" for row in copy_rows()), encoding="utf-8")
    return path


def copies(chance: random.Random) -> Talk:
    """Return a conversation, of up to COPIES turns, in which the model answers each code with a random one."""
    number = chance.randint(1, COPIES)
    pairs = [(Said("user", chance.choice(CODES)), Said("assistant", chance.choice(CODES))) for _ in range(number)]
    return tuple(said for pair in pairs for said in pair)


def errands(chance: random.Random) -> Talk:
    """Return a planner's conversation, or one of its helper; in both the model opens or says anything."""
    if chance.random() < 0.5:
        return aimless(chance)
    return (Said("user", chance.choice(CODES)), Said("assistant", chance.choice(CODES)))

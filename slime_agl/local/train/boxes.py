"""A two-turn task: name the code in a box, which only a tool can open.

Its agent is `slime_agl.testing.boxes`. The words are those of the tiny model's vocabulary.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

BOXES = ("red", "tan")
CODES = ("12", "34", "56")
EMPTY = "empty"

CALL_OPENER, CALL_CLOSER = '<tool_call>{"name": "open", "arguments": {"box": "', '"}}</tool_call>'


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a conversation. role: user, assistant or tool. word: a box or a code. call: it opens that box."""

    role: str
    word: str
    call: bool = False


Talk = tuple[Said, ...]


def rows() -> list[dict[str, str]]:
    """Return every pair of box (prompt) and code (label), in mixed order."""
    pairs = [(box, CODES[(at + shift) % len(CODES)]) for shift in range(len(CODES)) for at, box in enumerate(BOXES)]
    return [{"prompt": box, "label": code} for box, code in pairs]


def write_rows(path: Path) -> Path:
    """Write the rows as slime's --prompt-data."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
    return path


def aimless(chance: random.Random) -> Talk:
    """Return a well-formed conversation in which the model opens a random box and says a random code."""
    asked, opened, code, said = (chance.choice(words) for words in (BOXES, BOXES, CODES, CODES))
    return talk(asked, opened, code if asked == opened else EMPTY, said)


def knowing(chance: random.Random) -> Talk:
    """Return a conversation in which the model opens the right box and says the code in it."""
    box, code = chance.choice(BOXES), chance.choice(CODES)
    return talk(box, box, code, code)


def talk(asked: str, opened: str, found: str, said: str) -> Talk:
    """asked: a box. opened: the box that the model opens. found: in it. said: the model's answer."""
    return (
        Said("user", asked),
        Said("assistant", opened, call=True),
        Said("tool", found),
        Said("assistant", said),
    )

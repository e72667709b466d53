"""What the engine samples: texts of every kind, tokenized as no tokenizer would."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from typing import Any

# Each request of an agent carries tags in its new messages, each sampled text a word.
TAG = re.compile(r"uq(\d+)x(\d+)x(\d+)qu")
WORD = re.compile(r"zq(\d+)x(\d+)qz")


def tag(program: int, call: int, number: int) -> str:
    return f"uq{program}x{call}x{number}qu"


def word(program: int, number: int) -> str:
    return f"zq{program}x{number}qz"


@dataclass(slots=True)
class Plan:
    """The plan of a turn. ids: all sampled ids. matched: what ends it, None for the length limit.

    faults: what happens before it is sampled: an HTTP status (0 breaks the connection), or ('cut', k): an abort after k
    tokens, with new weights afterwards. hold: the answer waits for `release`. plain: the text says what its kind says.
    """

    word: str
    kind: str
    ids: list[int]
    matched: int | None
    plain: bool
    faults: list[Any] = field(default_factory=list)
    hold: bool = False


KINDS = (
    "text",
    "text",
    "think",
    "thinks_on",
    "call",
    "calls",
    "calls",
    "think_call",
    "cut_call",
    "bad_call",
    "nothing",
)
PLAIN = ("text", "think", "call", "calls", "think_call")


def saying(rng: random.Random, said: str, language: Any, kinds: tuple[str, ...] = KINDS) -> Plan:
    """Plan a random turn that says `said`. language: the family's tokenizer and stop ids."""
    kind = rng.choice(kinds)
    ids = cut(rng, _text(rng, kind, said, language.opens_think), language.tokenizer)
    plain = kind in PLAIN
    if rng.random() < 0.1:
        ids.insert(rng.randrange(len(ids) + 1), rng.choice(language.strays))
        plain = False
    ending = rng.random()
    if ending < 0.1:
        return Plan(said, kind, ids or [language.stops[0]], None, plain)
    stop = language.stops[0] if ending < 0.8 else rng.choice(language.stops)
    return Plan(said, kind, [*ids, stop], stop, plain)


def cut(rng: random.Random, text: str, tokenizer: Any) -> list[int]:
    """Encode a text in pieces, so that re-encoding it gives other ids."""
    places = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))})
    ids: list[int] = []
    for begin, end in zip(places, places[1:], strict=False):
        ids += tokenizer.encode(text[begin:end], add_special_tokens=False)
    return ids


def call(name: str, arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _text(rng: random.Random, kind: str, said: str, opened: bool) -> str:
    number = rng.randrange(100)
    text = {
        "text": f"{said} is it, Grüße 世界." + rng.choice(["", "\n\n", " "]),
        "think": f"<think>\nis it {said}?\n</think>\n\n {said} the hello",
        "thinks_on": f"<think>\nis it {said}? the",
        "call": call("add", {"b": said, "a": [number, {"é": None}]}),
        "calls": f"{said}\n"
        + "\n".join(call(("add", "sub")[n % 2], {"b": said, "a": n}) for n in range(rng.choice((2, 2, 3, 5)))),
        "think_call": f"<think>\n{said}\n</think>\n\n" + call("sub", {"b": said}),
        "cut_call": f'{said} <tool_call>\n{{"name": "add", "arguments": {{"b": "{said}',
        "bad_call": f"<tool_call>\nadd({said})\n</tool_call>",
        "nothing": "",
    }[kind]
    if not opened:
        return text
    if text.startswith("<think>\n"):
        return text.removeprefix("<think>\n")
    return text if kind == "nothing" else f"hm {said}\n</think>\n\n{text}"

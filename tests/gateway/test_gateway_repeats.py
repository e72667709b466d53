"""A body that repeats an earlier one is parsed as any other, and shares what it repeats."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest

from slime_agl.gateway import repeats
from slime_agl.gateway.repeats import Repeats, Seen, _place

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"required": ["a", "b"]}}}]
WORDS = [
    "plain",
    'a "quoted" word',
    "back\\slash",
    "]}, [{",
    "naïve 你好",
    "\u2028",
    "",
    '"messages": [1, 2]',
    "\\u005d",
]


@pytest.fixture(autouse=True)
def _every_body_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "SHORT", 0)


def message(rng: random.Random) -> Any:
    kind = rng.randrange(4)
    if kind == 0:
        return {"role": "user", "content": rng.choice(WORDS)}
    if kind == 1:
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "x": [1, [2.5, None, True]]}]}
    if kind == 2:
        return {"role": "tool", "content": [{"type": "text", "text": rng.choice(WORDS)}], "big": 2**63 + 1, "f": 1e300}
    return rng.choice(WORDS)


def body(messages: list[Any], style: int) -> bytes:
    """The same body as different clients write it."""
    if style == 0:
        return orjson.dumps({"messages": messages, "model": "m", "tools": TOOLS})
    if style == 1:
        return json.dumps({"model": "m", "tools": TOOLS, "messages": messages}).encode()
    if style == 2:
        return json.dumps({"tools": TOOLS, "messages": messages, "x": []}, indent=2, ensure_ascii=False).encode()
    return json.dumps({"messages": messages}, separators=(",", ":")).encode()


@pytest.mark.parametrize("seed", range(40))
def test_bodies_of_all_clients_are_parsed_as_without_it(seed: int) -> None:
    rng, shared, seen = random.Random(seed), Repeats(), Seen()
    talks: list[list[Any]] = [[message(rng)] for _ in range(3)]
    sent: dict[bytes, Any] = {}
    for _ in range(60):
        talk = rng.choice(talks)
        change = rng.randrange(8)
        if change == 0 and len(talk) > 1:
            talk.pop()
        elif change == 1:
            talk[rng.randrange(len(talk))] = message(rng)
        elif change > 2:
            talk += [message(rng) for _ in range(rng.randrange(1, 3))]
        raw = body(talk, rng.randrange(4) if change == 2 else talks.index(talk))
        found, digest = shared.parse(raw, "messages", seen)
        assert found == orjson.loads(raw) and list(found) == list(orjson.loads(raw))
        assert sent.setdefault(raw, digest) == digest
        found["messages"].append("what its reader does with the list stays there")
    assert len(set(sent.values())) == len(sent)


@pytest.mark.parametrize("style", range(4))
def test_what_is_repeated_is_not_parsed_again(style: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(repeats, "plain", lambda raw: parsed.append(raw) or orjson.loads(raw))
    rng, shared, seen = random.Random(1), Repeats(), Seen()
    messages = [{"role": "user", "content": "the first"}]
    before: list[Any] = []
    for number in range(20):
        found, _ = shared.parse(body(messages, style), "messages", seen)
        assert all(old is new for old, new in zip(before, found["messages"], strict=False))
        assert number == 0 or b"the first" not in parsed[-1]
        before = found["messages"]
        messages += [message(rng), {"role": "user", "content": f"number {number}"}]
    assert len(parsed) == 20


def test_attempts_share_their_tools() -> None:
    shared = Repeats()
    one, other = (shared.parse(body([{"role": "user", "content": text}], 0), "messages", Seen())[0] for text in "ab")
    assert one["messages"] != other["messages"]
    found = []
    for text in "ab":
        seen = Seen()
        for count in (1, 2):
            found.append(shared.parse(body([text] * count, 0), "messages", seen)[0])
    assert found[1]["tools"] is found[3]["tools"] == TOOLS


@pytest.mark.parametrize(
    "second",
    [
        b'{"messages":[1,],"m":0}',
        b'{"messages":[1,2 3],"m":0}',
        b'{"messages":[1 2],"m":0}',
        b'{"messages":[1,2],"m":0}x',
        b'{"messages":[1,"],"m":0}',
        b'{"messages":[1,2]],"m":0}',
        b'{"messages":[1,[2],"m":0}',
    ],
)
def test_what_is_no_json_is_refused_as_without_it(second: bytes) -> None:
    shared, seen = Repeats(), Seen()
    shared.parse(b'{"messages":[1],"m":0}', "messages", seen)
    with pytest.raises(orjson.JSONDecodeError):
        shared.parse(second, "messages", seen)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'{"messages":[[1],2],"m":0}', b'{"messages":[[1,3],2],"m":0}'),
        (b'{"messages":[1],"tools":[1]}', b'{"messages":[1],"tools":[1,2]}'),
        (b'{"messages":[1],"messages":[2]}', b'{"messages":[1,3],"messages":[2]}'),
        (b'{"messages":[1],"\\u006dessages":[2]}', b'{"messages":[1,3],"\\u006dessages":[2]}'),
        (b'{"messages":[1],"m":0}', b'{"messages":[1,2],"m":5}'),
        (b'{"m":0,"messages":[1]}', b'{"m":5,"messages":[1,2]}'),
        (b'{"messages":[1],"m":0}', b'{"messages":[1,2],"m":[{"messages":[1,2],"m":0}]}'),
        (b'{"messages":[1],"m":0}', b'{"messages":[1,"],\\"m\\":0}"],"m":0}'),
        (b'{"a":{"messages":[1]},"messages":[1]}', b'{"a":{"messages":[1,2]},"messages":[1]}'),
        (b'{"messages":[]}', b'{"messages":[1]}'),
        (b"[1]", b"[1,2]"),
    ],
)
def test_what_only_looks_like_an_earlier_body_is_parsed_for_itself(first: bytes, second: bytes) -> None:
    shared, seen = Repeats(), Seen()
    for raw in (first, second, first, second):
        assert shared.parse(raw, "messages", seen)[0] == orjson.loads(raw)


def test_fields_of_two_protocols_are_not_mixed() -> None:
    shared, seen = Repeats(), Seen()
    for array, messages in (("messages", [0]), ("input", [0, 1]), ("messages", [0, 1, 2])):
        raw = orjson.dumps({"messages": messages, "input": [7]})
        assert shared.parse(raw, array, seen)[0] == orjson.loads(raw)


def test_a_client_that_rewrites_its_conversation_is_soon_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(repeats, "_place", lambda raw, array: looked.append(1) or _place(raw, array))
    shared, seen = Repeats(), Seen()
    for number in range(50):
        shared.parse(body([f"all new {number}", "b"], 0), "messages", seen)
    assert len(looked) == repeats.MOST_MISSES


def test_the_place_of_an_array_is_that_of_its_elements() -> None:
    raw = ' { "é" : [1, "]"] , "messages" : [ {"x": "é"} , [2] ] , "b": {} } '.encode()
    begin, end = _place(raw, "messages")
    assert raw[begin:end] == ' {"x": "é"} , [2]'.encode()


@pytest.mark.parametrize("held", [0, repeats.LARGEST_HELD], ids=["by hash", "by its bytes"])
def test_a_conversation_with_another_history_is_parsed_whole(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same length, with the same end: only the bytes before can tell."""
    monkeypatch.setattr(repeats, "LARGEST_HELD", held)
    shared, seen = Repeats(), Seen()
    for text in ("one", "two", "one", "six"):
        for count in (1, 2, 3):
            messages = [
                {"role": "user", "content": text},
                *({"role": "user", "content": "go on"} for _ in range(count)),
            ]
            assert shared.parse(body(messages, 0), "messages", seen)[0]["messages"] == messages


def test_one_body_is_held_for_a_conversation() -> None:
    shared, seen = Repeats(), Seen()
    for count in range(1, 9):
        for text in "ab":
            shared.parse(body([text] * count, 0), "messages", seen)
    assert len({id(noted.held) for noted in seen.noted}) == 2 == len({noted.elements[0] for noted in seen.noted})


def test_branches_of_one_conversation_are_told_apart() -> None:
    shared, seen = Repeats(), Seen()
    for messages in (["x"], ["x", "bb"], ["x", "cc"], ["x", "cc", "d"], ["x", "bb", "e"]):
        assert shared.parse(body(messages, 0), "messages", seen)[0]["messages"] == messages

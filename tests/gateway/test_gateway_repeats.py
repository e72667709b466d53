"""A body that repeats an earlier one is parsed as any other, and shares what it repeats."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import orjson
import pytest

from slime_agl.gateway import repeats
from slime_agl.gateway.protocols.anthropic.blocks import messages_of
from slime_agl.gateway.protocols.anthropic.dialect import AnthropicMessages
from slime_agl.gateway.protocols.chat import ChatCompletions
from slime_agl.gateway.refusal import Refusal
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


@pytest.fixture(autouse=True, params=["long", "short"])
def _bodies_are(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones are held, short ones hashed."""
    monkeypatch.setattr(repeats, "LEAST_HELD", 0 if request.param == "long" else repeats.LARGEST_HELD)


def later() -> Seen:
    """An attempt that has sent a body, so that the next ones are noted."""
    seen = Seen()
    seen.count = -1
    return seen


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
    rng, shared, attempts = random.Random(seed), Repeats(), [Seen() for _ in range(3)]
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
        attempt = attempts[talks.index(talk)] if rng.random() < 0.9 else rng.choice([*attempts, Seen()])
        found, digest, _ = shared.parse(raw, "messages", attempt)
        assert orjson.dumps(found) == orjson.dumps(orjson.loads(raw))
        assert sent.setdefault(raw, digest) == digest
    assert len(set(sent.values())) == len(sent)


@pytest.mark.parametrize("style", range(4))
def test_what_is_repeated_is_not_parsed_again(style: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(repeats, "plain", lambda raw: parsed.append(raw) or orjson.loads(raw))
    rng, shared, seen = random.Random(1), Repeats(), later()
    messages = [{"role": "user", "content": "the first"}]
    before: list[Any] = []
    for number in range(20):
        found, _, _ = shared.parse(body(messages, style), "messages", seen)
        assert all(old is new for old, new in zip(before, found["messages"], strict=False))
        assert number == 0 or b"the first" not in parsed[-1]
        before = found["messages"]
        messages += [message(rng), {"role": "user", "content": f"number {number}"}]
    assert len(parsed) == 20
    shared.parse(body(messages[:3], style), "messages", Seen())
    assert len(parsed) == 21 and parsed[-1].startswith(b"[") and b"look" not in parsed[-1], "tools are parsed once"


def test_attempts_share_their_tools() -> None:
    shared = Repeats()
    shared.parse(body([{"role": "user", "content": "x"}], 0), "messages", later())
    one, other = (shared.parse(body([{"role": "user", "content": text}], 0), "messages", Seen()) for text in "ab")
    assert one.body["messages"] != other.body["messages"]
    assert one.body["tools"] is other.body["tools"] == TOOLS
    assert one.frame is other.frame and one.digest != other.digest


def test_a_single_body_is_not_looked_at_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(repeats, "_place", lambda raw, array: looked.append(1) or _place(raw, array))
    shared = Repeats()
    for number in range(50):
        shared.parse(orjson.dumps({"messages": ["x"], "user": number}), "messages", Seen())
    assert looked == []


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
    shared, seen = Repeats(), later()
    shared.parse(b'{"messages":[1],"m":0}', "messages", seen)
    assert len(seen.noted) == 1
    for attempt in (seen, Seen()):
        with pytest.raises(orjson.JSONDecodeError):
            shared.parse(second, "messages", attempt)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b'{"messages":[[1],2],"m":0}', b'{"messages":[[1,3],2],"m":0}'),
        (b'{"messages":[1],"tools":[1]}', b'{"messages":[1],"tools":[1,2]}'),
        (b'{"messages":[1]}', b'{"messages":[1],"tools":[2]}'),
        (b'{"messages":[1]}', b'{"messages":[1],"messages":[2]}'),
        (b'{"messages":["x"]}', b'{"messages":["x"],"messages":["x"]}'),
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
    shared, seen = Repeats(), later()
    for raw in (first, second, first, second):
        assert shared.parse(raw, "messages", seen).body == orjson.loads(raw)
        assert shared.parse(raw, "messages", Seen()).body == orjson.loads(raw)


def test_fields_of_two_protocols_are_not_mixed() -> None:
    shared, seen = Repeats(), later()
    for array, messages in (("messages", [0]), ("input", [0, 1]), ("messages", [0, 1, 2])):
        raw = orjson.dumps({"messages": messages, "input": [7]})
        assert shared.parse(raw, array, seen)[0] == orjson.loads(raw)


def test_a_client_that_rewrites_its_conversation_is_soon_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(repeats, "_place", lambda raw, array: looked.append(1) or _place(raw, array))
    shared, seen = Repeats(), later()
    for number in range(50):
        shared.parse(orjson.dumps({"messages": ["all new"] * (number + 1), "n": number}), "messages", seen)
    assert len(looked) == repeats.MOST_MISSES
    shared.parse(orjson.dumps({"messages": ["again"], "n": 3}), "messages", seen)
    assert len(seen.noted) == repeats.MOST_MISSES, "nor is one with the frame of another"


def test_the_place_of_an_array_is_that_of_its_elements() -> None:
    raw = ' { "é" : [1, "]"] , "messages" : [ {"x": "é"} , [2] ] , "b": {} } '.encode()
    begin, end = _place(raw, "messages")
    assert raw[begin:end] == ' {"x": "é"} , [2]'.encode()


@pytest.mark.parametrize("held", [0, repeats.LARGEST_HELD], ids=["by hash", "by its bytes"])
def test_a_conversation_with_another_history_is_parsed_whole(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same length, with the same end: only the bytes before can tell."""
    monkeypatch.setattr(repeats, "LARGEST_HELD", held)
    shared, seen = Repeats(), later()
    counts = iter(range(1, 20))
    for text in ("one", "two", "one", "six"):
        for _ in range(3):
            messages = [{"role": "user", "content": text}, *[{"role": "user", "content": "go on"}] * next(counts)]
            assert shared.parse(body(messages, 0), "messages", seen).body["messages"] == messages


def test_one_body_is_held_for_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "LEAST_HELD", 0)
    shared, seen = Repeats(), later()
    for count in range(1, 9):
        for text in "ab":
            shared.parse(body([text] * count, 0), "messages", seen)
    assert len({id(noted.held) for noted in seen.noted}) == 2 == len({noted.elements[0] for noted in seen.noted})


def test_of_a_short_conversation_only_its_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "LEAST_HELD", 1 << 20)
    shared, seen = Repeats(), later()
    for count in range(1, 9):
        for text in "ab":
            shared.parse(body([text] * count, 0), "messages", seen)
    assert [len(noted.elements) for noted in seen.noted] == [8, 8]
    assert {noted.held for noted in seen.noted} == {None}


def test_branches_of_one_conversation_are_told_apart() -> None:
    shared, seen = Repeats(), later()
    for messages in (["x"], ["x", "bb"], ["x", "cc"], ["x", "cc", "d"], ["x", "bb", "e"]):
        assert shared.parse(body(messages, 0), "messages", seen).body["messages"] == messages


class Attempt:
    """The parts of a session that a dialect uses."""

    def __init__(self) -> None:
        self.seen, self.counters = later(), Counter()

    def count(self, name: str) -> None:
        self.counters[name] += 1


def claude(rng: random.Random, number: int) -> list[dict[str, Any]]:
    """A turn of Anthropic's protocol and what answers it."""
    call = {"type": "tool_use", "id": f"c{number}", "name": "look", "input": {"a": rng.choice([1, True, 1.0, "x"])}}
    thought = {"type": "thinking", "thinking": "so", "signature": "x"}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": rng.choice(WORDS)}
    told = {"type": "text", "text": rng.choice(WORDS)}
    return [
        {"role": "assistant", "content": [thought, call][number % 2 :]},
        {"role": "user", "content": [result, told][: rng.randrange(1, 3)]},
    ]


def openai(rng: random.Random, number: int) -> list[dict[str, Any]]:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"c{number}", "content": rng.choice(WORDS)},
    ]


CHAT = {"model": "m", "tools": TOOLS, "user": "somebody", "temperature": 0.5, "stop": ["x"]}
CLAUDE = {
    **{"model": "m", "max_tokens": 9, "metadata": {}, "system": [{"type": "text", "text": "Be brief."}]},
    "tools": [{"name": "look", "input_schema": {"type": "object"}}],
}


@pytest.mark.parametrize("seed", range(10))
def test_what_was_read_before_is_read_the_same(seed: int) -> None:
    """Two protocols in one attempt, which rewrites its history now and then."""
    rng, shared, attempt = random.Random(seed), Repeats(), Attempt()
    dialects = [(ChatCompletions("m", None), CHAT, openai), (AnthropicMessages("m"), CLAUDE, claude)]
    first = {"role": "user", "content": "hi"}
    talks: list[list[Any]] = [[first], [first]]
    for number in range(40):
        at = rng.randrange(2)
        (dialect, other, turn), talk = dialects[at], talks[at]
        if number % 5 == 4 and len(talk) > 2 and at:
            call = talk[1]["content"][-1]
            talk[1] = {**talk[1], "content": [{**call, "input": {"a": rng.choice([1, True, 1.0])}}]}
        raw = orjson.dumps({**other, "messages": talk})
        parsed = shared.parse(raw, "messages", attempt.seen)
        fresh = Attempt()
        before = attempt.counters.copy()
        known, plain = dialect.read(parsed.body, attempt, parsed.frame), dialect.read(orjson.loads(raw), fresh)
        assert repr(known) == repr(plain)
        assert attempt.counters - before == fresh.counters and sum(fresh.counters.values()) == 1
        talk += turn(rng, number)


def test_messages_are_converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[int] = []
    monkeypatch.setattr(
        "slime_agl.gateway.protocols.anthropic.dialect.messages_of",
        lambda messages, first=0: converted.append(len(messages)) or messages_of(messages, first),
    )
    rng, shared, attempt, dialect = random.Random(1), Repeats(), Attempt(), AnthropicMessages("m")
    talk: list[Any] = [{"role": "user", "content": "hi"}]
    for number in range(5):
        parsed = shared.parse(orjson.dumps({**CLAUDE, "messages": talk}), "messages", attempt.seen)
        dialect.read(parsed.body, attempt, parsed.frame)
        talk += claude(rng, number)
    assert converted == [1, 2, 2, 2, 2]


def test_what_was_made_of_a_body_that_is_not_noted_is_not_anothers() -> None:
    shared, attempt, dialect = Repeats(), Attempt(), AnthropicMessages("m")
    one, other = ({"role": "user", "content": text} for text in ("one", "other"))
    noted = []
    for messages, more in (([one], {}), ([other], {"temperature": 1}), ([one, other], {})):
        raw = orjson.dumps({**CLAUDE, **more, "messages": messages})
        parsed = shared.parse(raw, "messages", attempt.seen)
        assert dialect.read(parsed.body, attempt, parsed.frame).request.messages[1:] == messages
        noted.append(len(attempt.seen.noted))
    assert noted[:2] == [1, 1]


def test_what_one_protocol_checked_is_read_by_another() -> None:
    shared, attempt = Repeats(), Attempt()
    told: list[Any] = []
    for dialect in (ChatCompletions("m", None), AnthropicMessages("m"), ChatCompletions("m", None)):
        told.append({"role": "user", "content": f"number {len(told)}"})
        parsed = shared.parse(orjson.dumps({"messages": told, "model": "m", "max_tokens": 9}), "messages", attempt.seen)
        assert dialect.read(parsed.body, attempt, parsed.frame).request.messages == told


def test_a_message_that_is_wrong_is_named_by_its_place() -> None:
    shared, attempt, dialect = Repeats(), Attempt(), AnthropicMessages("m")
    talk: list[Any] = [{"role": "user", "content": "hi"}]
    for _ in range(2):
        parsed = shared.parse(orjson.dumps({**CLAUDE, "messages": talk}), "messages", attempt.seen)
        dialect.read(parsed.body, attempt, parsed.frame)
        talk.append({"role": "user", "content": "more"})
    talk.append({"role": "nobody", "content": "x"})
    parsed = shared.parse(orjson.dumps({**CLAUDE, "messages": talk}), "messages", attempt.seen)
    with pytest.raises(Refusal, match=r"messages\[3\] has role 'nobody'"):
        dialect.read(parsed.body, attempt, parsed.frame)


def test_what_was_refused_is_checked_again() -> None:
    shared, attempt, dialect = Repeats(), Attempt(), ChatCompletions("m", None)
    told: list[Any] = [{"role": "user", "content": "hi"}]
    bad = {"role": "assistant", "content": "", "tool_calls": [7]}
    for more in ([], [{"role": "user", "content": "and?"}], [bad], [{"role": "user", "content": "again"}]):
        told += more
        parsed = shared.parse(orjson.dumps({"messages": told}), "messages", attempt.seen)
        if bad in told:
            with pytest.raises(Refusal, match="tool_calls"):
                dialect.read(parsed.body, attempt, parsed.frame)
        else:
            dialect.read(parsed.body, attempt, parsed.frame)
    noted = attempt.seen.noted[-1]
    assert noted.before is not None and noted.before.before is None, "earlier bodies are let go"


def test_two_conversations_of_one_attempt_are_checked_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr(
        "slime_agl.gateway.protocols.chat._check_calls", lambda messages, known: checked.append(len(messages) - known)
    )
    shared, attempt, dialect = Repeats(), Attempt(), ChatCompletions("m", None)
    talks: list[list[Any]] = [[{"role": "user", "content": text}] for text in "ab"]
    for number in range(4):
        for talk in talks:
            parsed = shared.parse(orjson.dumps({"messages": talk}), "messages", attempt.seen)
            dialect.read(parsed.body, attempt, parsed.frame)
            talk += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": str(number)}]
    assert checked == [1, 1] + [2] * 6

"""Ledgers and executions survive their record whole: every field, including future ones."""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from slime_agl.errors import InvariantError
from slime_agl.record.codec import decode_array, decode_ledger, encode_array, encode_ledger
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.replay import Experts, TopP
from slime_agl.trace.turn import Media, Sampled, Turn

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
numbers = st.floats(0, 1e9)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(lambda values: array("i", values))
counts = st.integers(0, 1 << 40)
metas = st.dictionaries(words, st.none() | st.booleans() | st.integers(-9, 9) | words, max_size=2)
media = st.builds(Media, text=words, images=st.lists(words, max_size=2).map(tuple))


@st.composite
def top_ps(draw: st.DrawFn, tokens: int) -> TopP:
    sizes = draw(st.lists(st.integers(0, 3), min_size=tokens, max_size=tokens))
    offsets = array("i", [sum(sizes[:at]) for at in range(tokens + 1)])
    return TopP(array("i", draw(st.lists(st.integers(0, 99), min_size=sum(sizes), max_size=sum(sizes)))), offsets)


@st.composite
def experts(draw: st.DrawFn, start: int) -> Experts:
    width, rows = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    size = width * rows
    kind = draw(st.sampled_from("BHi"))
    return Experts(start, width, array(kind, draw(st.lists(st.integers(0, 255), min_size=size, max_size=size))))


@st.composite
def parts(draw: st.DrawFn, covered: int) -> Sampled:
    out = draw(ids)
    drawn = {
        "ids": out,
        "logprobs": array("d", draw(st.lists(st.floats(-50, 0), min_size=len(out), max_size=len(out)))),
        "finish": draw(st.sampled_from(["stop", "length", "abort"])),
        "matched": draw(st.none() | words | st.integers(0, 99)),
        "prompt_tokens": draw(counts),
        "cached_tokens": draw(counts),
        "weight_version": draw(words),
        "latency": draw(numbers),
        "meta": draw(metas),
        "experts": draw(st.none() | experts(covered)),
        "top_p": draw(st.none() | top_ps(len(out))),
    }
    return built(Sampled, drawn)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    held = Ledger(draw(words), draw(words))
    for index in range(draw(st.integers(0, 5))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        covered, answered = held.covered(parent), []
        for _ in range(draw(st.integers(0, 2))):
            answered.append(draw(parts(covered)))
            covered = answered[-1].experts.end if answered[-1].experts else covered
        drawn = {
            "index": index,
            "parent": parent,
            "new_ids": draw(ids),
            "parts": tuple(answered),
            "turn_id": draw(words),
            "fork": draw(words),
            "untrained": draw(words),
            "model": draw(words),
            "started": draw(numbers),
            "ended": draw(numbers),
            "engine_seconds": draw(numbers),
            "media": draw(st.none() | media),
        }
        held.commit(built(Turn, drawn))
    if held.turns:
        held.full.update(draw(st.sets(st.integers(0, len(held.turns) - 1))))
    return held


def built(cls: type[Struct], drawn: dict[str, Any]) -> Any:
    """An object of a struct, all of whose fields have been drawn."""
    assert drawn.keys() == set(cls.__struct_fields__), "a new field has to be drawn here"
    return cls(**drawn)


def through_json(ledger: Ledger) -> Ledger:
    return decode_ledger(orjson.loads(orjson.dumps(encode_ledger(ledger))))


def differing(one: Any, other: Any, where: str = "ledger") -> list[str]:
    """The places in which two values differ, structs and dataclasses field by field and arrays with their type code."""
    if type(one) is not type(other):
        return [f"{where}: {type(one).__name__} and {type(other).__name__}"]
    if dataclasses.is_dataclass(one) or isinstance(one, Struct):
        names = one.__struct_fields__ if isinstance(one, Struct) else [item.name for item in dataclasses.fields(one)]
        return [
            found for name in names for found in differing(getattr(one, name), getattr(other, name), f"{where}.{name}")
        ]
    if isinstance(one, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for at, (a, b) in pairs for found in differing(a, b, f"{where}[{at}]")]
    if isinstance(one, array) and one.typecode != other.typecode:
        return [f"{where}: typecodes {one.typecode} and {other.typecode}"]
    return [] if one == other else [f"{where}: {one!r} and {other!r}"]


@given(ledgers())
@settings(max_examples=60, deadline=None)
def test_every_field_of_a_ledger_survives_its_record(held: Ledger):
    assert differing(held, through_json(held)) == []


def test_turns_after_which_a_prompt_had_no_room_survive():
    held = Ledger("ro", "at")
    held.commit(
        Turn(
            index=0,
            parent=None,
            new_ids=array("i", [1]),
            parts=(Sampled(ids=array("i", [2]), logprobs=array("d", [-0.5]), finish="stop"),),
            turn_id="t",
        )
    )
    held.full.add(0)
    assert through_json(held).full == {0}


@pytest.mark.parametrize("typecode, values", [("i", [-5, 0, 2**31 - 1]), ("d", [-0.0, float("-inf"), 1e-300])])
def test_arrays_survive_bit_for_bit(typecode: str, values: list[Any]):
    packed = array(typecode, values)
    assert decode_array(typecode, encode_array(packed)).tobytes() == packed.tobytes()


def one_turn(**changes: Any) -> dict[str, Any]:
    held = Ledger("ro", "at")
    held.commit(
        Turn(
            index=0,
            parent=None,
            new_ids=array("i", [1]),
            parts=(Sampled(ids=array("i", [2]), logprobs=array("d", [-0.5]), finish="stop"),),
            turn_id="t",
        )
    )
    data = orjson.loads(orjson.dumps(encode_ledger(held)))
    data["turns"][0].update(changes)
    return data


@pytest.mark.parametrize(
    "changes",
    [
        {"index": True},
        {"index": 1},
        {"index": "0"},
        {"parent": -1},
        {"model": {"a": 1}},
        {"started": None},
        {"turn_id": ["x"]},
        {"new_ids": "AAA"},
        {"new_ids": 5},
        {"media": ["text", [3]]},
        {"parts": [{}]},
        {"parts": 7},
    ],
)
def test_what_is_no_turn_is_refused_and_does_not_become_one(changes: dict[str, Any]):
    with pytest.raises((ValueError, TypeError, KeyError, InvariantError)):
        decode_ledger(one_turn(**changes))


@pytest.mark.parametrize("full", [[1], [-1], [True], ["0"], 3])
def test_a_full_turn_that_is_not_there_is_refused(full: Any):
    with pytest.raises(ValueError):
        decode_ledger({**one_turn(), "full": full})

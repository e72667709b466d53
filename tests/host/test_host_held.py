"""Everything a Sample may contain survives JSON, equal and of the same type."""

from __future__ import annotations

import math
from collections import OrderedDict
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_agl.errors import HostError
from slime_agl.host.plain import KIND, from_plain, to_plain

flat = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.text(st.characters())
    | st.decimals(allow_nan=False)
    | st.just(KIND)
)
values = st.recursive(
    flat,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.just(KIND), inner, max_size=3)
        | st.frozensets(st.integers() | st.text(), max_size=3)
    ),
    max_leaves=8,
)


def through_json(value: Any) -> Any:
    return from_plain(orjson.loads(orjson.dumps(to_plain(value, "value"))))


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types all the way down, in the same order; NaN is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float | Decimal) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one), list(other)) and same(list(one.values()), list(other.values()))
    return one == other


@given(values)
@settings(max_examples=300, deadline=None)
def test_any_nest_of_plain_values_survives(value: Any) -> None:
    assert same(value, through_json(value))


@pytest.mark.parametrize(
    "value",
    [
        "a lone surrogate \udc80",
        {"\udc80": 1},
        {1: "one", "1": "another"},
        {KIND: ["bytes", "AAAA"]},
        [math.nan, math.inf, -math.inf, -0.0, 1 << 70, -(1 << 70)],
    ],
)
def test_values_that_json_has_no_place_for_survive(value: Any) -> None:
    assert same(value, through_json(value))


@pytest.mark.parametrize("kind", ["<i4", ">f8", "|b1", "<f2", "<U3", "|S2", "<M8[s]", "|u1"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_survive(kind: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).astype("i8").reshape(shape).astype(kind)
    again = through_json(array)
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert again.flags.writeable
    number = np.zeros((), kind)[()]
    assert type(through_json(number)) is type(number)


def test_tensors_survive() -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        for tensor in (
            torch.arange(6).to(kind).reshape(2, 3).T,
            torch.zeros((), dtype=kind),
            torch.empty(0, 3, dtype=kind),
        ):
            again = through_json({"pixel_values": tensor})["pixel_values"]
            assert again.dtype is tensor.dtype and torch.equal(again, tensor)


def test_images_survive_with_their_pixels() -> None:
    images = pytest.importorskip("PIL.Image")
    for mode in ("RGB", "L", "RGBA", "1", "P", "I;16"):
        image = images.new(mode, (5, 3))
        image.putpixel((1, 1), image.getpixel((0, 0)))
        image.info = {"dpi": (72, 72), "loader": object()}
        again = through_json({"images": [image]})["images"][0]
        assert type(again) is images.Image
        assert (again.mode, again.size, again.tobytes()) == (image.mode, image.size, image.tobytes())
        assert again.info == {"dpi": (72, 72)}
    palette = images.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.putpixel((1, 0), 1)
    assert through_json(palette).convert("RGB").tobytes() == palette.convert("RGB").tobytes()


@pytest.mark.parametrize(
    "value, words",
    [
        (object(), "value is a builtins.object"),
        ({"a": [1, OrderedDict()]}, r"value\['a'\]\[1\] is a collections.OrderedDict"),
        ([np.array([None])], r"value\[0\] is a NumPy array of object"),
        ({("a", object()): 1}, r"a key of value\[1\] is a builtins.object"),
        (np.ma.array([1]), "value is a numpy.ma.MaskedArray|value is a numpy.ma"),
    ],
)
def test_what_cannot_come_back_exactly_is_refused_by_its_place(value: Any, words: str) -> None:
    with pytest.raises(HostError, match=words):
        to_plain(value, "value")


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(HostError, match="nested more than"):
        to_plain(value, "value")


@pytest.mark.parametrize("data", [{KIND: ["eval", "1"]}, {KIND: 5}, {KIND: ["tensor", "load", [1], ""]}, {KIND: []}])
def test_what_was_not_written_here_is_an_error(data: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        from_plain(data)

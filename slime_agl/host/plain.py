"""Convert a Sample's values to JSON data and back, exactly; reading runs no code.

JSON's own values are kept. Everything else becomes an object with the single key KIND; a mapping with this key, or
with a key that is not a string, is written as pairs.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from slime_agl.errors import HostError

KIND = "$"
_JSON_INTEGERS = range(-(1 << 63), 1 << 63)
_WRITABLE = (
    "None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset, Decimal, NumPy arrays and numbers, "
    "torch tensors and PIL images"
)
# Deeper nesting is a cycle or a mistake, and JSON writers refuse it.
_DEEPEST = 100


def to_plain(value: Any, where: str, *, depth: int = 0) -> Any:
    """Convert a value to JSON data that `from_plain` turns into an equal value of the same type.

    Tensors come back on the CPU. An image of any class comes back as a plain image with the same mode, pixels and
    palette, and the writable part of its `info`.

    Raises:
        HostError: something in it cannot be written; `where` and the path below it name it.
    """
    kind = type(value)
    if depth > _DEEPEST:
        raise HostError(f"{where} is nested more than {_DEEPEST} levels deep; a checkpoint cannot hold it")
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if value in _JSON_INTEGERS else {KIND: ["int", hex(value)]}
    if kind is float:
        return value if math.isfinite(value) else {KIND: ["float", value.hex()]}
    if kind is str:
        return _text(value)
    if kind is list:
        return [to_plain(one, f"{where}[{at}]", depth=depth + 1) for at, one in enumerate(value)]
    if kind is dict:
        return _mapping(value, where, depth)
    if kind in (tuple, set, frozenset):
        return {
            KIND: [kind.__name__, [to_plain(one, f"{where}[{at}]", depth=depth + 1) for at, one in enumerate(value)]]
        }
    if kind is bytes:
        return {KIND: ["bytes", _packed(value)]}
    if kind is Decimal:
        return {KIND: ["decimal", str(value)]}
    return _arrays(value, where, depth)


def from_plain(data: Any) -> Any:
    """Convert back what `to_plain` returned.

    Raises:
        ValueError, TypeError, KeyError: the data is not from `to_plain`.
    """
    if isinstance(data, list):
        return [from_plain(one) for one in data]
    if not isinstance(data, dict):
        return data
    if KIND not in data:
        return {name: from_plain(value) for name, value in data.items()}
    name, *rest = data[KIND]
    return _READERS[name](*rest)


def _text(value: str) -> Any:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, as file names may have
        return {KIND: ["str", _packed(value.encode("utf-8", "surrogatepass"))]}
    return value


def _mapping(value: Mapping[Any, Any], where: str, depth: int) -> Any:
    below = depth + 1
    plain = {name: to_plain(one, f"{where}[{name!r}]", depth=below) for name, one in value.items()}
    if KIND not in plain and all(type(name) is str and isinstance(_text(name), str) for name in plain):
        return plain
    return {KIND: ["dict", [[to_plain(name, f"a key of {where}", depth=below), one] for name, one in plain.items()]]}


def _arrays(value: Any, where: str, depth: int) -> Any:
    # A module that is not imported cannot have made the value: this avoids importing torch and pillow.
    torch, pil = sys.modules.get("torch"), sys.modules.get("PIL.Image")
    if _is_numpy(value):
        if value.dtype.hasobject or value.dtype.names:
            raise HostError(
                f"{where} is a NumPy array of {value.dtype}, which a checkpoint cannot hold; use plain numbers"
            )
        name = "array" if isinstance(value, np.ndarray) else "number"
        return {KIND: [name, value.dtype.str, list(value.shape), _packed(value.tobytes())]}
    if torch is not None and type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized:
        flat = value.detach().cpu().contiguous().reshape(-1)
        kind = str(value.dtype).removeprefix("torch.")
        return {KIND: ["tensor", kind, list(value.shape), _packed(flat.view(torch.uint8).numpy().tobytes())]}
    if pil is not None and isinstance(value, pil.Image):
        palette = value.getpalette("RGBA") if value.mode == "P" else None
        return {KIND: ["image", value.mode, list(value.size), _packed(value.tobytes()), palette, _info(value.info)]}
    raise HostError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold exactly; "
        f"it holds {_WRITABLE}: put one of these into the Sample"
    )


def _is_numpy(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and type(value).__module__ == "numpy"


def _info(info: Mapping[Any, Any]) -> Any:
    kept = {}
    for name, value in info.items():
        try:
            to_plain(value, "info")
        except HostError:  # a decoder's own object, which only the decoder reads
            continue
        kept[name] = value
    return _mapping(kept, "info", 0)


def _packed(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _array(kind: str, shape: list[int], text: str) -> np.ndarray:
    return np.ndarray(shape, np.dtype(kind), buffer=bytearray(_bytes(text)))


def _tensor(kind: str, shape: list[int], text: str) -> Any:
    import torch  # only a process that trains has tensors to read

    dtype = getattr(torch, kind)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no type {kind!r}")
    content = bytearray(_bytes(text))
    flat = torch.frombuffer(content, dtype=torch.uint8).view(dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def _image(mode: str, size: list[int], text: str, palette: list[int] | None, info: Any) -> Any:
    from PIL import Image

    image = Image.frombytes(mode, (size[0], size[1]), _bytes(text))
    if palette is not None:
        image.putpalette(palette, "RGBA")
    image.info = from_plain(info)
    return image


def _listed(values: list[Any]) -> list[Any]:
    return [from_plain(value) for value in values]


_READERS = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "str": lambda text: _bytes(text).decode("utf-8", "surrogatepass"),
    "bytes": _bytes,
    "decimal": Decimal,
    "tuple": lambda values: tuple(_listed(values)),
    "set": lambda values: set(_listed(values)),
    "frozenset": lambda values: frozenset(_listed(values)),
    "dict": lambda pairs: {from_plain(name): from_plain(value) for name, value in pairs},
    "array": _array,
    "number": lambda kind, shape, text: _array(kind, shape, text)[()],
    "tensor": _tensor,
    "image": _image,
}

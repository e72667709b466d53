"""Sampling parameters under SGLang's names and defaults, checked before anything is sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Never

from slime_agl.errors import EngineRejected, closest

_GREEDY_BELOW = 1e-6

# Known to SGLang and not supported here: accepted only with the value that means "off".
_OFF: dict[str, object] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "n": 1,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "logit_bias": None,
    "stop_regex": None,
    "custom_params": None,
}
# No effect on the ids: they change only how text is spaced or streamed.
_NO_EFFECT = frozenset({"spaces_between_special_tokens", "stream_interval"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping of one request.

    temperature: below 1e-6, decoding is greedy. top_k: -1 keeps the whole vocabulary.
    max_new_tokens, min_new_tokens: in tokens; stop ids cannot be drawn before the minimum is reached.
    repetition_penalty: applies to every token of the sequence, including the prompt.
    ignore_eos: neither end-of-sequence ids nor `stop_token_ids` end the request, as in SGLang.
    no_stop_trim: keep the matched stop in the text (the ids always keep it).
    sampling_seed: makes a token's random number a function of (seed, position in the sequence).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: int | None = None

    def __post_init__(self) -> None:
        _require(self.temperature >= 0, "temperature", self.temperature, "at least 0")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _require(self.top_k == -1 or self.top_k >= 1, "top_k", self.top_k, "-1 or at least 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        _require(0 < self.repetition_penalty <= 2, "repetition_penalty", self.repetition_penalty, "in (0, 2]")
        _require(self.max_new_tokens >= 0, "max_new_tokens", self.max_new_tokens, "at least 0")
        allowed = f"between 0 and max_new_tokens ({self.max_new_tokens})"
        _require(0 <= self.min_new_tokens <= self.max_new_tokens, "min_new_tokens", self.min_new_tokens, allowed)
        _require(all(self.stop), "stop", list(self.stop), "non-empty strings")

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY_BELOW


def parse_sampling_params(given: Mapping[str, object]) -> SamplingParams:
    """Parse the `sampling_params` of a `/generate` body. null means the default.

    Raises:
        EngineRejected: an unknown name, a wrong type, a value out of range, or an unsupported feature.
    """
    known = {field.name for field in fields(SamplingParams)}
    values: dict[str, Any] = {}  # each of its field's type, by _READERS
    for name, value in given.items():
        if value is None or name in _NO_EFFECT:
            continue
        if name in known:
            values[name] = _READERS[name](name, value)
        elif name in _OFF:
            if value not in (_OFF[name], {}, []):
                raise EngineRejected(
                    f"sampling_params.{name} is {value!r}; the local engine has no {name}, leave it out", status=400
                )
        else:
            hint = closest(name, known | _OFF.keys())
            raise EngineRejected(f"sampling_params has an unknown field {name!r}.{hint}", status=400)
    return SamplingParams(**values)


def _require(valid: bool, name: str, value: object, allowed: str) -> None:
    if not valid:
        _refuse(name, value, allowed)


def _refuse(name: str, value: object, allowed: str) -> Never:
    raise EngineRejected(f"sampling_params.{name} is {value!r}, it must be {allowed}", status=400)


def _number(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    _refuse(name, value, "a finite number")


def _integer(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    _refuse(name, value, "an integer")


def _flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    _refuse(name, value, "true or false")


def _strings(name: str, value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if isinstance(items, list) and all(isinstance(item, str) for item in items):
        return tuple(items)
    _refuse(name, value, "a string or a list of strings")


def _integers(name: str, value: object) -> tuple[int, ...]:
    items = [value] if isinstance(value, int) else value
    if isinstance(items, list):
        return tuple(_integer(name, item) for item in items)
    _refuse(name, value, "a list of integers")


_READERS = {
    "temperature": _number,
    "top_p": _number,
    "top_k": _integer,
    "min_p": _number,
    "repetition_penalty": _number,
    "max_new_tokens": _integer,
    "min_new_tokens": _integer,
    "stop": _strings,
    "stop_token_ids": _integers,
    "ignore_eos": _flag,
    "skip_special_tokens": _flag,
    "no_stop_trim": _flag,
    "sampling_seed": _integer,
}

"""Sampling parameters under SGLang's names and defaults, checked before anything is sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from slime_agl.errors import EngineRejected, closest

_GREEDY_BELOW = 1e-6

# Known to SGLang and not done here: accepted only with the value that means "off".
_OFF: dict[str, Any] = {
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
# Without effect on the ids: they change spacing or pacing only.
_NO_EFFECT = frozenset({"spaces_between_special_tokens", "stream_interval"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn, and when it ends.

    temperature: below 1e-6 the most likely token is taken. top_k: -1 keeps the whole vocabulary.
    max_new_tokens, min_new_tokens: tokens; until the minimum is reached stop ids cannot be drawn.
    repetition_penalty: applies to every token of the sequence, prompt included.
    ignore_eos: neither end-of-sequence ids nor `stop_token_ids` end the request, as in SGLang.
    no_stop_trim: leave the matched stop in the text (the ids always keep it).
    sampling_seed: makes a token's random number a function of (seed, its position in the sequence).
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


def parse_sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """Read the `sampling_params` of a `/generate` body. null means the default.

    Raises:
        EngineRejected: an unknown name, a wrong type, a value out of range, or a feature that is not done here.
    """
    known = {field.name for field in fields(SamplingParams)}
    values: dict[str, Any] = {}
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


def _require(holds: bool, name: str, value: Any, allowed: str) -> None:
    if not holds:
        raise EngineRejected(f"sampling_params.{name} is {value!r}, it must be {allowed}", status=400)


def _number(name: str, value: Any) -> float:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    _require(ok, name, value, "a finite number")
    return float(value)


def _integer(name: str, value: Any) -> int:
    _require(isinstance(value, int) and not isinstance(value, bool), name, value, "an integer")
    return value


def _flag(name: str, value: Any) -> bool:
    _require(isinstance(value, bool), name, value, "true or false")
    return value


def _strings(name: str, value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    ok = isinstance(items, list) and all(isinstance(item, str) for item in items)
    _require(ok, name, value, "a string or a list of strings")
    return tuple(items)


def _integers(name: str, value: Any) -> tuple[int, ...]:
    items = [value] if isinstance(value, int) else value
    _require(isinstance(items, list), name, value, "a list of integers")
    return tuple(_integer(name, item) for item in items)


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

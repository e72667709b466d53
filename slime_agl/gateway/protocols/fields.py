"""Read request bodies field by field. Fields that cannot be honoured are refused by name, before sampling.

The rule, for every protocol: a field is honoured; or ignored, because it changes no token that is sampled or shown, for
the reason that stands beside it in a closed list; or refused by name. A field that no list has is refused: what it
means is unknown, so ignoring it could train on answers to another question than the agent's. Ignored fields are
counted per attempt (`ignored_fields/NAME`), and so are tools that a server would run (see `hosted`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import orjson

from slime_agl.errors import closest
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.repeats import Frame

T = TypeVar("T")

# Sampling parameters: the protocol's name and SGLang's.
SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
LARGEST_ID = 2**31 - 1
IGNORED = "ignored_fields/"
_CACHES = "places a request in a service's prompt cache; here an attempt's turns stay on one engine"
# Fields of all protocols that change no token, with the reason.
BOOKKEEPING = {
    "metadata": "labels a request in its service's logs",
    "client_metadata": "tells a service which program and session a request comes from",
    "user": "names the end user, for a service's abuse reports",
    "safety_identifier": "names the end user, for a service's abuse reports",
    "service_tier": "chooses a price and a queue",
    "prompt_cache_key": _CACHES,
    "prompt_cache_retention": _CACHES,
    "store": "asks a service to keep the answer; what can be asked for again is kept in any case",
}


Count = Callable[[str], None]
"""Adds one to a counter, by name."""


def uncounted(name: str) -> None:
    """No-op Count."""


class _Options(NamedTuple):
    """Options read from a frame. counted: names to count for every body that has this frame."""

    value: Any
    counted: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The fields of a protocol.

    honoured: take effect. ignored: change no token, each with the reason. fixed: accepted with these values only.
    refused: why a field cannot be honoured; false and empty lists pass.
    """

    honoured: frozenset[str]
    ignored: Mapping[str, str] = field(default_factory=lambda: BOOKKEEPING)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def check(self, body: object, count: Count = uncounted) -> dict[str, Any]:
        """Return the non-null fields of the body. count: told of each field that is ignored.

        Raises:
            Refusal: 400, naming the field.
        """
        if not isinstance(body, dict):
            raise Refusal(400, f"the request body must be a JSON object, got {type(body).__name__}")
        given = {name: value for name, value in body.items() if value is not None}
        for name in given.keys() - self.honoured:
            if name in self.ignored:
                count(IGNORED + name)
            else:
                self._check(name, given[name])
        return given

    def _check(self, name: str, value: object) -> None:
        if name in self.fixed:
            if not any(value is taken or value == taken for taken in self.fixed[name]):
                taken = " or ".join(json.dumps(item) for item in self.fixed[name])
                raise bad_field(name, f"{name} is {json.dumps(value)}; this endpoint honours {taken} only")
        elif name in self.refused:
            if value or value == {}:  # an empty object requests a feature with its defaults
                raise bad_field(name, f"{name} is not supported: {self.refused[name]}")
        else:
            known = self.honoured | self.ignored.keys() | self.fixed.keys()
            raise bad_field(name, f"{name} is not a field of this endpoint.{closest(name, known)}")


def options(
    table: Table, body: object, frame: Frame | None, read: Callable[[dict[str, Any], Count], T], count: Count
) -> T:
    """Check a body, and read everything but its conversation: once for all bodies with the same frame.

    read: takes the non-null fields, and what to tell of those that are ignored. What it returns is shared, so nobody
    may change it.

    Raises:
        Refusal: 400, as `read` and `table.check` do.
    """
    known = None if frame is None else frame.options.get(table)
    if known is not None:
        for name in known.counted:
            count(name)
        return known.value
    counted: list[str] = []

    def noted(name: str) -> None:
        counted.append(name)
        count(name)

    value = read(table.check(body, noted), noted)
    if frame is not None:
        frame.options[table] = _Options(value, tuple(counted))
    return value


def count(body: Mapping[str, Any], name: str, *, least: int = 1, most: int | None = None) -> int | None:
    """An integer, None if absent."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        upper = f" and at most {most}" if most is not None else ""
        raise bad_field(name, f"{name} is {value!r}, it must be a whole number of at least {least}{upper}")
    return value


def model(body: Mapping[str, Any], default: str) -> str:
    """The model name, `default` if absent or empty."""
    name = body.get("model") or default
    if not isinstance(name, str):
        raise bad_field("model", f"model must be a text, got {type(name).__name__}")
    return name


def mapping(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object, empty if absent."""
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_field(name, f"{name} must be an object, got {type(value).__name__}")
    return value


def objects(body: Mapping[str, Any], name: str, *, known: int = 0) -> list[dict[str, Any]]:
    """A list of objects, empty if absent. known: number of leading elements that are known to be objects."""
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not {dict}.issuperset(map(type, value[known:])):
        raise bad_field(name, f"{name} must be a list of objects")
    return value


def stops(body: Mapping[str, Any], name: str = "stop") -> tuple[str, ...]:
    """A stop string or a list of them."""
    stop = body.get(name)
    if not stop:
        return ()
    stop = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, list | tuple) or not all(isinstance(text, str) and text for text in stop):
        raise bad_field(name, f"{name} must be a string or a list of non-empty strings")
    return tuple(stop)


def ids(value: object, name: str) -> tuple[int, ...]:
    """A list of token ids."""
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= LARGEST_ID for item in value):
        raise bad_field(name, f"{name} must be a list of token ids, whole numbers from 0 to {LARGEST_ID}")
    return tuple(value)


def sampling(body: Mapping[str, Any]) -> dict[str, float]:
    """Sampling parameters in SGLang's names."""
    found: dict[str, float] = {}
    if SAMPLING.keys().isdisjoint(body):
        return found
    for name, engine_name in SAMPLING.items():
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_field(name, f"{name} is {value!r}, it must be a number")
        found[engine_name] = value
    return found


def template_kwargs(body: Mapping[str, Any], effort: object = None) -> dict[str, Any]:
    """Chat template variables: `chat_template_kwargs`, and the two with fields of their own."""
    found = dict(mapping(body, "chat_template_kwargs"))
    try:
        if found:
            orjson.dumps(found)
    except TypeError as error:
        raise bad_field("chat_template_kwargs", f"chat_template_kwargs are nested too deeply: {error}") from error
    if body.get("enable_thinking") is not None:
        found.setdefault("enable_thinking", bool(body["enable_thinking"]))
    if effort is not None:
        found.setdefault("reasoning_effort", effort)
    return found


def constraint(wish: object, name: str) -> dict[str, Any]:
    """SGLang's parameter for structured output. wish: {type, json_schema: {schema}} or {type, schema}."""
    kind = wish.get("type") if isinstance(wish, dict) else wish
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    inner = wish.get("json_schema", wish) if isinstance(wish, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if kind == "json_schema" and isinstance(schema, dict):
        return {"json_schema": json.dumps(schema)}
    raise bad_field(name, f"{name} of type {kind!r} is not supported; use text, json_object or json_schema")


def grammar(body: Mapping[str, Any]) -> dict[str, str]:
    """SGLang's own fields for structured output."""
    found = {name: body[name] for name in ("regex", "ebnf") if body.get(name) is not None}
    for name, value in found.items():
        if not isinstance(value, str):
            raise bad_field(name, f"{name} must be a string, got {type(value).__name__}")
    return found


def top_logprobs(number: int | None) -> dict[str, Any]:
    """Engine request fields for `number` alternatives per token."""
    return {"top_logprobs_num": number} if number else {}

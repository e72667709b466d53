"""A condition on named fields, such as `reward >= 1 and not truncated`. Parsed here; nothing is evaluated as code.

condition   = and_ { "or" and_ }
and_        = not_ { "and" not_ }
not_        = "not" not_ | "(" condition ")" | comparison
comparison  = value [ ("==" | "!=" | "<" | "<=" | ">" | ">=") value ]
value       = number | 'text' | "text" | true | false | null | field
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slime_agl.errors import ConfigError, closest

Value = float | str | bool | None
Facts = Mapping[str, Value]
Term = Callable[[Facts], Value]

LONGEST, DEEPEST = 4000, 50
_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])"
    r"|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<sign><=|>=|==|!=|<|>|\(|\))"
    r"|(?P<word>[A-Za-z_][\w.]*))"
)
_WORDS = ("and", "or", "not")
_CONSTANTS: dict[str, Value] = {"true": True, "false": False, "null": None}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt},
    **{"<=": operator.le, ">": operator.gt, ">=": operator.ge},
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition. fields: the names in it. `holds` evaluates it."""

    text: str
    fields: tuple[str, ...]
    _term: Term

    def require(self, known: Mapping[str, object]) -> None:
        """Raise ConfigError if a field is not among the known ones."""
        for name in self.fields:
            if name not in known:
                raise ConfigError(
                    f"--where {self.text!r}: there is no field {name!r}.{closest(name, known)} "
                    f"Fields: {', '.join(sorted(known))}"
                )

    def holds(self, facts: Facts) -> bool:
        """Evaluate on one row. A field that the row lacks is null, which no order holds for.

        Raises:
            ConfigError: values of different kinds are compared, or something that is neither true nor false is a
                condition.
        """
        return _truth(self._term(facts), self.text)


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises ConfigError with the place of a mistake."""
    if len(text) > LONGEST:
        raise ConfigError(f"--where has {len(text)} characters, at most {LONGEST} are read")
    parser = _Parser(text, list(_tokens(text)))
    term = parser.condition(0)
    parser.require_end()
    return Condition(text, tuple(dict.fromkeys(parser.fields)), term)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            hint = "; compare with ==" if text[at] == "=" else ""
            raise ConfigError(f"--where {text!r}: {text[at]!r} at character {at + 1} is not understood{hint}")
        kind = str(match.lastgroup)
        yield kind, match[kind], match.start(kind)
        at = match.end()


class _Parser:
    def __init__(self, text: str, tokens: list[tuple[str, str, int]]) -> None:
        self._text, self._tokens, self._at = text, tokens, 0
        self.fields: list[str] = []

    def condition(self, depth: int) -> Term:
        if depth > DEEPEST:
            raise ConfigError(f"--where is nested more than {DEEPEST} levels deep")
        return self._joined("or", lambda: self._joined("and", lambda: self._negated(depth)))

    def require_end(self) -> None:
        if self._at < len(self._tokens):
            raise self._unexpected("'and', 'or' or the end")

    def _joined(self, word: str, part: Callable[[], Term]) -> Term:
        parts = [part()]
        while self._take("word", word):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        fold, text = any if word == "or" else all, self._text
        return lambda facts: fold(_truth(one(facts), text) for one in parts)

    def _negated(self, depth: int) -> Term:
        if self._take("word", "not"):
            if depth >= DEEPEST:
                raise ConfigError(f"--where is nested more than {DEEPEST} levels deep")
            inner, text = self._negated(depth + 1), self._text
            return lambda facts: not _truth(inner(facts), text)
        if self._take("sign", "("):
            inner = self.condition(depth + 1)
            if not self._take("sign", ")"):
                raise self._unexpected("')'")
            return inner
        return self._comparison()

    def _comparison(self) -> Term:
        left_name, left = self._value()
        kind, sign, _ = self._peek()
        if kind != "sign" or sign not in _COMPARISONS:
            return left
        self._at += 1
        right_name, right = self._value()
        text = self._text
        return lambda facts: _compared(sign, (left_name, left(facts)), (right_name, right(facts)), text)

    def _value(self) -> tuple[str, Term]:
        kind, word, _ = self._peek()
        if kind not in ("number", "text", "word") or word in _WORDS:
            raise self._unexpected("a field, a number or a quoted text")
        self._at += 1
        if kind == "word" and word not in _CONSTANTS:
            self.fields.append(word)
            return word, lambda facts: facts.get(word)
        constant = float(word) if kind == "number" else word[1:-1] if kind == "text" else _CONSTANTS[word]
        return word, lambda facts: constant

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "the end", len(self._text))

    def _take(self, kind: str, word: str) -> bool:
        found = self._peek()[:2] == (kind, word)
        self._at += found
        return found

    def _unexpected(self, wanted: str) -> ConfigError:
        _, word, at = self._peek()
        return ConfigError(f"--where {self._text!r}: expected {wanted} at character {at + 1}, found {word}")


def _truth(value: Value, text: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ConfigError(f"--where {text!r}: {value!r} is {_kind(value)}, compare it with something, as in reward >= 1")


def _compared(sign: str, left: tuple[str, Value], right: tuple[str, Value], text: str) -> bool:
    (_, a), (_, b) = left, right
    if a is None or b is None:
        return {"==": a is b, "!=": a is not b}.get(sign, False)
    if _kind(a) != _kind(b) or (isinstance(a, bool) and sign not in ("==", "!=")):
        raise ConfigError(
            f"--where {text!r}: {left[0]} is {_kind(a)} ({a!r}) and {right[0]} is {_kind(b)} ({b!r}); {sign} does not "
            "compare them"
        )
    return _COMPARISONS[sign](a, b)


def _kind(value: Value) -> str:
    return "true or false" if isinstance(value, bool) else "a text" if isinstance(value, str) else "a number"

"""One attempt as the gateway holds it: its ledger, its conversation, its calls, and whether it is sealed."""

from __future__ import annotations

import itertools
import secrets
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from slime_agl.errors import EngineError, InvariantError
from slime_agl.gateway.bodies import Bounds, Served
from slime_agl.gateway.protocols.responses.stored import StoredResponses
from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.sessions.calls import Calls
from slime_agl.gateway.sessions.gate import Gate
from slime_agl.gateway.turn.conversation import Conversation, Node
from slime_agl.gateway.turn.own_prompts import OwnPrompts
from slime_agl.lru import LRU
from slime_agl.trace.ledger import Ledger

TEXTS_HELD = 4


@dataclass(frozen=True, slots=True)
class IdText:
    """A sequence of token ids. text: comma-separated decimals without brackets. length: how many they are."""

    text: bytes = b""
    length: int = 0

    def extended(self, ids: array) -> IdText:
        """This sequence and `ids`. Only `ids` are written."""
        if not ids:
            return self
        added = orjson.dumps(ids.tolist())[1:-1]
        return IdText(b",".join((self.text, added)) if self.text else added, self.length + len(ids))


class HeldTexts:
    """The sequences of an attempt's turns (prompt and output) as text.

    Texts are held for the ends of the latest chains; a turn on the way to such an end is a part of its text,
    and one elsewhere is written anew.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._texts: LRU[int, bytes] = LRU(TEXTS_HELD)
        self._ends = array("q")

    def of(self, index: int | None) -> IdText:
        """The exact ids of turn `index`; no ids for None."""
        if index is None:
            return IdText()
        found = self._texts.get(index) or self._part(index)
        return (
            IdText().extended(self._ledger.held(index)) if found is None else IdText(found, self._ledger.length(index))
        )

    def keep(self, index: int, ids: IdText) -> None:
        """Hold the ids of turn `index`, the one committed last."""
        self._ends.append(len(ids.text))
        parent = self._ledger.turns[index].parent
        if parent is not None:
            self._texts.pop(parent, None)
        self._texts[index] = ids.text

    def _part(self, index: int) -> bytes | None:
        """The text of a turn as the beginning of a later one's."""
        for leaf, text in self._texts.items():
            if leaf > index and any(turn.index == index for turn in self._ledger.path(leaf)):
                return text[: self._ends[index]]
        return None


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """What an attempt may do, decided before its agent runs.

    session_key: pins the attempt's turns to one engine. sampling: SGLang parameters of the trainer.
    response_limit: most tokens of one turn, None for what the context leaves.
    context_limit: most tokens of a segment, None for the engine's own.
    experts_width: routed experts of one token when they are to be replayed, else None.
    lane: sessions of one lane are held and released together.
    """

    rollout_id: str
    attempt_id: str
    session_key: str
    sampling: Mapping[str, Any]
    response_limit: int | None
    context_limit: int | None = None
    experts_width: int | None = None
    lane: str = ""


@dataclass(frozen=True, slots=True)
class SealedSession:
    """What a sealed attempt leaves. `engine_errors`: messages of engine failures its agent was told of."""

    ledger: Ledger
    messages: list[dict[str, Any]]
    final_text: str
    counters: Counter[str]
    engine_errors: tuple[str, ...]
    broken: InvariantError | None


class Session:
    """Owner of one attempt's state, which only its methods change. Lives on the gateway's event loop."""

    def __init__(self, spec: SessionSpec, key: str, gate: Gate, bounds: Bounds) -> None:
        self.spec = spec
        self.key = key
        self.gate = gate
        self.bounds = bounds
        self.served = Served()
        self.ledger = Ledger(spec.rollout_id, spec.attempt_id)
        self.conversation = Conversation()
        self.own_prompts = OwnPrompts()
        self.stored = StoredResponses()
        self.calls = Calls()
        self.counters: Counter[str] = Counter()
        self.engine_errors: list[str] = []
        self.broken: InvariantError | None = None
        self.sealed = False
        self.texts = HeldTexts(self.ledger)
        self.last: Node | None = None
        self.last_text = ""
        # Ids of requests and answers hold it: two attempts never use the same.
        self.nonce = secrets.token_hex(6)
        self._asked = itertools.count()

    def request_id(self) -> str:
        """A new id for an engine request; none is the beginning of another."""
        return f"{self.spec.attempt_id}-{self.nonce}-{next(self._asked):06d}"

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the attempt."""
        self.counters[name] += by

    def answered(self, text: str, node: Node | None) -> None:
        """Take note of the latest answer. node: its place in the conversation, None for a prompt of the agent's own."""
        self.last, self.last_text = node, text

    def failed(self, error: EngineError) -> None:
        """Take note of an engine failure that the agent is told of."""
        self.engine_errors.append(str(error))

    def broke(self, error: InvariantError) -> None:
        """Take note of a broken invariant; the first one stands."""
        self.broken = self.broken or error

    def overflowed(self, refusal: Refusal) -> Refusal:
        """Count a request that the context cannot hold; returns its refusal."""
        self.counters["context_overflow"] += 1
        return refusal

    def leave(self) -> SealedSession:
        messages = self.last.shown() if self.last is not None else []
        return SealedSession(
            self.ledger, messages, self.last_text, self.counters, tuple(self.engine_errors), self.broken
        )

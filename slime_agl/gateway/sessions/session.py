"""The gateway's state of one attempt: ledger, conversation, calls, and whether it is sealed."""

from __future__ import annotations

import itertools
import secrets
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from slime_agl.engine.id_text import IdText
from slime_agl.errors import EngineError, EngineFailure, EngineRejected, InvariantError
from slime_agl.gateway.bodies import Bounds, Served
from slime_agl.gateway.protocols.responses.stored import StoredResponses
from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.repeats import Seen
from slime_agl.gateway.request import Message
from slime_agl.gateway.sessions.calls import CallTable
from slime_agl.gateway.sessions.gate import Gate
from slime_agl.gateway.turn.conversation import Conversation, Node
from slime_agl.gateway.turn.own_prompts import OwnPrompts
from slime_agl.record.said import Said
from slime_agl.trace.ledger import Ledger

TEXTS_KEPT = 4


class IdTexts:
    """Ids of an attempt's turns (prompt and output) as text, ready for the engine.

    Keeps the text of the latest leaves only. A turn on the path to such a leaf is a prefix of its text; any other is
    serialised again.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._texts: dict[int, IdText] = {}
        self._ends = array("q")

    def of(self, index: int | None) -> IdText:
        """The exact ids of turn `index`; empty for None."""
        if index is None:
            return IdText()
        return self._texts.get(index) or self._part(index) or IdText().extended(self._ledger.ids(index))

    def keep(self, index: int, ids: IdText) -> None:
        """Keep the ids of turn `index`, the one committed last, in place of its parent's."""
        self._ends.append(ids.size)
        parent = self._ledger.turns[index].parent
        if parent is not None:
            self._texts.pop(parent, None)
        self._texts[index] = ids
        if len(self._texts) > TEXTS_KEPT:
            del self._texts[next(iter(self._texts))]

    def _part(self, index: int) -> IdText | None:
        """The text of a turn as a prefix of a later one's."""
        for leaf, text in self._texts.items():
            if leaf > index and any(turn.index == index for turn in self._ledger.path(leaf)):
                return text.cut(self._ends[index], self._ledger.length(index))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """An attempt's identity and limits, fixed before its agent starts.

    session_key: pins the attempt's turns to one engine. sampling: the trainer's parameters, in SGLang's names.
    response_limit: token limit per turn, None for the rest of the context.
    context_limit: token limit per segment, None for the engine's own.
    experts_width: routed experts per token if they are replayed, else None.
    lane: sessions of one lane are parked and resumed together.
    origin: leads the ids of its engine requests, so that all requests of one process can be aborted together.
    events: the agent may post events, a reward among them. key: of the session; '' mints one.
    """

    rollout_id: str
    attempt_id: str
    session_key: str
    sampling: Mapping[str, object]
    response_limit: int | None
    context_limit: int | None = None
    experts_width: int | None = None
    lane: str = ""
    origin: str = ""
    events: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSession:
    """Results of a sealed attempt. engine_errors: engine failures reported to its agent, in order.

    refused: its first refused request, quoted; '' without one.
    said: messages by turn, without turns whose prompt the agent rendered itself.
    """

    ledger: Ledger
    messages: list[Message]
    final_text: str
    counters: Counter[str]
    engine_errors: tuple[EngineFailure, ...]
    broken: InvariantError | None
    said: Mapping[int, Said]
    refused: str = ""


class Session:
    """Owner of one attempt's state, changed only by its methods. Belongs to the gateway's event loop."""

    def __init__(self, spec: SessionSpec, key: str, gate: Gate, bounds: Bounds) -> None:
        self.spec = spec
        self.key = key
        self.gate = gate
        self.bounds = bounds
        self.served = Served()
        self.seen = Seen()
        self.ledger = Ledger(spec.rollout_id, spec.attempt_id)
        self.conversation = Conversation()
        self.own_prompts = OwnPrompts()
        self.stored = StoredResponses()
        self.calls = CallTable()
        self.counters: Counter[str] = Counter()
        self.engine_errors: list[EngineFailure] = []
        self.broken: InvariantError | None = None
        self.sealed = False
        self._refused = ("", False)
        self._trains = False
        self.texts = IdTexts(self.ledger)
        self.last: Node | None = None
        self.last_text = ""
        # Part of every request and answer id, so that two attempts never share one.
        self.nonce = secrets.token_hex(6)
        self._asked = itertools.count()

    def request_id(self) -> str:
        """Make an id for an engine request; none is a prefix of another, because aborts match by prefix."""
        return f"{self.spec.origin}{self.spec.attempt_id}-{self.nonce}-{next(self._asked):06d}"

    def count(self, name: str, by: int = 1) -> None:
        """Add to a counter of the attempt."""
        self.counters[name] += by

    def answered(self, text: str, node: Node | None, *, trains: bool) -> None:
        """Record the latest answer, and once one trains, the latest that does.

        node: its place in the conversation, None if the agent rendered the prompt.
        """
        if trains or not self._trains:
            self.last, self.last_text, self._trains = node, text, trains

    def failed(self, error: EngineError) -> None:
        """Record an engine failure that is reported to the agent."""
        self.engine_errors.append(EngineFailure(str(error), isinstance(error, EngineRejected)))

    def broke(self, error: InvariantError) -> None:
        """Record a broken invariant; the first one is kept."""
        self.broken = self.broken or error

    def overflowed(self, refusal: Refusal) -> Refusal:
        """Count a request that exceeds the context; return its refusal."""
        self.counters["context_overflow"] += 1
        return refusal

    def refused(self, words: str, *, turn: bool) -> None:
        """Record a refused request. The first one for a turn is kept, else the first of any. words: see `quoted`."""
        if turn:
            self.count("refused_requests")
        if not self._refused[0] or (turn and not self._refused[1]):
            self._refused = (words, turn)

    def leave(self) -> SealedSession:
        """The results, once the attempt is sealed."""
        messages = self.last.prompt_messages() if self.last is not None else []
        return SealedSession(
            ledger=self.ledger,
            messages=messages,
            final_text=self.last_text,
            counters=self.counters,
            engine_errors=tuple(self.engine_errors),
            broken=self.broken,
            refused=self._refused[0],
            said=self.conversation.said(),
        )

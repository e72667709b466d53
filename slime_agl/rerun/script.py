"""The recorded answers of one attempt, found by their exact prompts."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from slime_agl.errors import EngineFailure
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import ABORT, Sampled, Turn

# Reasons of turns whose answers reached no client.
UNSENT = frozenset({"abandoned", "sealed"})
FAILED = "engine_error"

_Key = tuple[bytes, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Piece:
    """One engine answer of a turn; a turn interrupted by aborts has several. last: nothing is sampled after it."""

    turn: Turn
    part: Sampled
    last: bool

    @property
    def unsent(self) -> bool:
        """True if the agent was gone when the answer came."""
        return self.last and self.turn.untrained in UNSENT

    @property
    def failed(self) -> bool:
        """True if the engine failed after this answer."""
        return self.last and self.turn.untrained == FAILED


class Script:
    """The prompts and answers of one attempt.

    ledger: its turns. engine_errors: engine failures reported to its agent, in order; failed prompts without a sampled
    token are not in the ledger.
    """

    def __init__(self, ledger: Ledger, engine_errors: Sequence[EngineFailure] = ()) -> None:
        self.ledger = ledger
        self.engine_errors = deque(engine_errors)
        self.given: set[int] = set()
        self.released: set[int] = set()
        self._pieces: dict[_Key, list[Piece]] = {}
        # The ledger orders turns by their end; equal prompts are answered in the order of their start.
        for turn in sorted(ledger.turns, key=lambda turn: (turn.started, turn.index)):
            self._add(turn)

    def take(self, ids: array, images: Sequence[str], model: str) -> Piece | None:
        """Return the next answer to a prompt, preferring those by `model`; None if no answer is left."""
        waiting = self._pieces.get((ids.tobytes(), tuple(images)))
        if not waiting:
            return None
        at = next((at for at, piece in enumerate(waiting) if piece.turn.model == model), 0)
        piece = waiting.pop(at)
        self.given.add(piece.turn.index)
        return piece

    def missing(self) -> list[Turn]:
        """Return the turns that were not requested, though an agent that behaves as recorded would request them."""
        return [turn for turn in self.ledger.turns if turn.index not in self.given and _needed(turn)]

    def ahead(self, index: int) -> bool:
        """Return True while a turn that was recorded before turn `index` is not answered yet."""
        return any(turn.index not in self.released and _needed(turn) for turn in self.ledger.turns[:index])

    def _add(self, turn: Turn) -> None:
        ids, images = self.ledger.prompt_ids(turn.index), self.ledger.images(turn.index)
        parts = [part for part in turn.parts if not _empty(part)] or list(turn.parts[-1:])
        for at, part in enumerate(parts):
            piece = Piece(turn, part, not any(len(later.ids) for later in parts[at + 1 :]))
            self._pieces.setdefault((ids.tobytes(), images), []).append(piece)
            ids = ids + part.ids


def _needed(turn: Turn) -> bool:
    return turn.output_length > 0 and turn.untrained not in UNSENT


def _empty(part: Sampled) -> bool:
    """Check for an abort before the first sampled token: the same prompt was then sent again."""
    return part.finish == ABORT and not len(part.ids) and part.experts is None

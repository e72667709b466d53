"""The recorded answers of one attempt, handed out again by the exact prompt that each of them answered."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import ABORT, Sampled, Turn

# Nobody was there any more to be shown what these turns sampled.
UNSHOWN = frozenset({"abandoned", "sealed"})
FAILED = "engine_error"

_Key = tuple[bytes, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Piece:
    """One engine answer of a turn; a turn that an abort had cut has several. last: nothing is sampled after it."""

    turn: Turn
    part: Sampled
    last: bool

    @property
    def unshown(self) -> bool:
        """Whether the agent had gone when the answer came."""
        return self.last and self.turn.untrained in UNSHOWN

    @property
    def failed(self) -> bool:
        """Whether the engine failed after this."""
        return self.last and self.turn.untrained == FAILED


class Script:
    """What one attempt asked and was answered.

    ledger: its turns. engine_errors: what it was told where the engine failed, in order; prompts of which nothing was
    sampled are not in the ledger.
    """

    def __init__(self, ledger: Ledger, engine_errors: Sequence[str] = ()) -> None:
        self.ledger = ledger
        self.engine_errors = deque(engine_errors)
        self.given: set[int] = set()
        self.released: set[int] = set()
        self._pieces: dict[_Key, list[Piece]] = {}
        # Turns stand in the order in which they ended; equal prompts were asked in the order in which they began.
        for turn in sorted(ledger.turns, key=lambda turn: (turn.started, turn.index)):
            self._add(turn)

    def take(self, ids: array, images: Sequence[str], model: str) -> Piece | None:
        """The next answer to a prompt, of those to this `model` if there is one; None when no answer is left."""
        waiting = self._pieces.get((ids.tobytes(), tuple(images)))
        if not waiting:
            return None
        at = next((at for at, piece in enumerate(waiting) if piece.turn.model == model), 0)
        piece = waiting.pop(at)
        self.given.add(piece.turn.index)
        return piece

    def missing(self) -> list[Turn]:
        """Turns that an agent which does the same would have asked for by its end, and that were not given."""
        return [turn for turn in self.ledger.turns if turn.index not in self.given and _needed(turn)]

    def ahead(self, index: int) -> bool:
        """Whether a turn that was answered before turn `index` has not been answered yet."""
        return any(turn.index not in self.released and _needed(turn) for turn in self.ledger.turns[:index])

    def _add(self, turn: Turn) -> None:
        ids, images = self.ledger.prompt_ids(turn.index), self.ledger.images(turn.index)
        parts = [part for part in turn.parts if not _empty(part)] or list(turn.parts[-1:])
        for at, part in enumerate(parts):
            piece = Piece(turn, part, not any(len(later.ids) for later in parts[at + 1 :]))
            self._pieces.setdefault((ids.tobytes(), images), []).append(piece)
            ids = ids + part.ids


def _needed(turn: Turn) -> bool:
    return turn.output_length > 0 and turn.untrained not in UNSHOWN


def _empty(part: Sampled) -> bool:
    """Whether an abort came before anything was sampled: the same prompt was then asked again."""
    return part.finish == ABORT and not len(part.ids) and part.experts is None

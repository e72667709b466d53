"""The turns of one attempt: an append-only tree."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from slime_agl.errors import InvariantError
from slime_agl.trace.turn import Turn

__all__ = ["Ledger"]


@dataclass(slots=True)
class Ledger:
    """Owner of an attempt's turns. Only `commit` adds to it.

    full: turns after which a prompt was refused because the sequence had no room for it.

    Invariants: `turns[i].index == i`; a parent precedes its children.
    """

    rollout_id: str
    attempt_id: str
    turns: list[Turn] = field(default_factory=list)
    full: set[int] = field(default_factory=set)
    _children: dict[int | None, list[int]] = field(default_factory=dict, init=False)
    _lengths: list[int] = field(default_factory=list, init=False)
    _covered: list[int] = field(default_factory=list, init=False)

    def commit(self, turn: Turn) -> Turn:
        """Append a turn.

        Raises:
            InvariantError: the turn's index is not the next one, its parent is unknown, or its routed experts do not
                start where those of its parent end.
        """
        if turn.index != len(self.turns):
            raise InvariantError(f"turn {turn.index} committed to {self} which holds {len(self.turns)} turns")
        if turn.parent is not None and not 0 <= turn.parent < turn.index:
            raise InvariantError(f"turn {turn.index} of {self} names turn {turn.parent} as its parent")
        before = 0 if turn.parent is None else self._lengths[turn.parent]
        covered = self._cover(turn)
        self.turns.append(turn)
        self._children.setdefault(turn.parent, []).append(turn.index)
        self._lengths.append(before + len(turn.new_ids) + turn.output_length)
        self._covered.append(covered)
        return turn

    def children(self, index: int | None) -> list[int]:
        """Indices of the turns that continue turn `index`; of the roots for None."""
        return self._children.get(index, [])

    def length(self, index: int) -> int:
        """Number of tokens in the sequence that ends with turn `index`: prompt, glue and outputs."""
        return self._lengths[index]

    def covered(self, index: int | None) -> int:
        """Number of leading tokens with known routed experts in the sequence that ends with turn `index`, or None."""
        return 0 if index is None else self._covered[index]

    def path(self, index: int) -> list[Turn]:
        """The turns from a root to turn `index`."""
        chain: list[Turn] = []
        at: int | None = index
        while at is not None:
            turn = self.turns[at]
            chain.append(turn)
            at = turn.parent
        chain.reverse()
        return chain

    def ids(self, index: int) -> array:
        """The exact ids of the sequence that ends with turn `index`: prompt plus output."""
        ids = array("i")
        for turn in self.path(index):
            ids.extend(turn.new_ids)
            for part in turn.parts:
                ids.extend(part.ids)
        return ids

    def prompt_ids(self, index: int) -> array:
        """The exact prompt ids of turn `index`, without its output."""
        turn = self.turns[index]
        return (array("i") if turn.parent is None else self.ids(turn.parent)) + turn.new_ids

    def leaves(self) -> Iterator[int]:
        """Indices of turns that no turn continues, in commit order."""
        return (turn.index for turn in self.turns if turn.index not in self._children)

    def images(self, index: int | None) -> tuple[str, ...]:
        """Images in the sequence that ends with turn `index`, in order; empty for None."""
        path = [] if index is None else self.path(index)
        return tuple(image for turn in path if turn.media is not None for image in turn.media.images)

    def _cover(self, turn: Turn) -> int:
        at = self.covered(turn.parent)
        for part in turn.parts:
            if part.experts is not None:
                if part.experts.start != at:
                    raise InvariantError(
                        f"turn {turn.index} of {self} has routed experts from token {part.experts.start} on, "
                        f"those before it end at token {at}"
                    )
                at = part.experts.end
        return at

    def __str__(self) -> str:
        return f"rollout {self.rollout_id}, attempt {self.attempt_id}"

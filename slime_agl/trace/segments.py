"""Segments: the turn tree as contiguous token sequences, each of which becomes a training sample."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass

from slime_agl.errors import InvariantError
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import LENGTH, Turn

__all__ = ["Segment"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A chain of turns whose tokens are contiguous.

    turns: from a root to the last trained turn. trained: indices of the turns whose tokens train here; the others are
    context, because another segment trains them or they must not train.
    """

    rollout_id: str
    attempt_id: str
    turns: tuple[Turn, ...]
    trained: frozenset[int]

    def __post_init__(self) -> None:
        if not self.turns or self.turns[-1].index not in self.trained:
            raise InvariantError(f"a segment of rollout {self.rollout_id} does not end in a trained turn")

    @property
    def first_trained(self) -> int:
        """Position in `turns` of the first turn that trains here; everything before it is prompt."""
        return next(at for at, turn in enumerate(self.turns) if turn.index in self.trained)

    @property
    def trained_tokens(self) -> int:
        return sum(turn.output_length for turn in self.turns if turn.index in self.trained)

    @property
    def truncated(self) -> bool:
        return self.turns[-1].finish == LENGTH

    def prompt_ids(self) -> array:
        """Ids before the first trained token: prompt, shared turns and their glue."""
        ids = array("i")
        first = self.first_trained
        for turn in self.turns[:first]:
            ids.extend(turn.new_ids)
            for part in turn.parts:
                ids.extend(part.ids)
        ids.extend(self.turns[first].new_ids)
        return ids


def segments(ledger: Ledger) -> tuple[Segment, ...]:
    """Cover every trainable turn of an attempt exactly once.

    Makes one segment per trainable turn without trainable descendants, in commit order. A turn shared by several
    segments trains in the first.
    """
    trainable = [not turn.untrained and turn.output_length > 0 for turn in ledger.turns]
    continued = [False] * len(ledger.turns)
    for turn in reversed(ledger.turns):
        if turn.parent is not None and (trainable[turn.index] or continued[turn.index]):
            continued[turn.parent] = True
    taken: set[int] = set()
    out = []
    for turn in ledger.turns:
        if not trainable[turn.index] or continued[turn.index]:
            continue
        path = ledger.path(turn.index)
        mine = frozenset(t.index for t in path if trainable[t.index] and t.index not in taken)
        taken |= mine
        out.append(Segment(ledger.rollout_id, ledger.attempt_id, tuple(path), mine))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Account:
    """Where every sampled token of an attempt went. untrained: number of tokens by reason."""

    sampled: int
    trained: int
    untrained: Counter[str]
    forks: Counter[str]


def account(ledger: Ledger, parts: tuple[Segment, ...]) -> Account:
    """Account for every sampled token.

    Raises:
        InvariantError: a token trains twice, or trains nowhere without a reason.
    """
    times = Counter(index for part in parts for index in part.trained)
    trained = 0
    untrained: Counter[str] = Counter()
    for turn in ledger.turns:
        count = turn.output_length
        if times[turn.index] > 1:
            raise InvariantError(f"turn {turn.index} of {ledger} trains in {times[turn.index]} segments, expected 1")
        if times[turn.index]:
            trained += count
        elif turn.untrained:
            untrained[turn.untrained] += count
        elif count:
            raise InvariantError(
                f"turn {turn.index} of {ledger}: {count} sampled tokens train nowhere and no reason says why"
            )
    sampled = trained + untrained.total()
    forks = Counter(turn.fork for turn in ledger.turns if turn.fork)
    return Account(sampled, trained, untrained, forks)

"""What the executions of all steps share: their numbers, what was said of them, and what none of them holds any more."""

from __future__ import annotations

import itertools
import logging

logger = logging.getLogger(__name__)

# Above any index that a data source gives.
FIRST_NUMBER = 1 << 40


class Register:
    """Lives as long as its runtime."""

    def __init__(self) -> None:
        self._numbers = itertools.count(FIRST_NUMBER)
        self._said: set[str] = set()
        self._lost = 0

    def next_number(self) -> int:
        """A number for an execution whose Sample has no index."""
        return next(self._numbers)

    def warn_once(self, message: str, *, topic: str = "") -> None:
        """Log a warning, once in this life; `topic` names it when its words vary."""
        if (topic or message) not in self._said:
            self._said.add(topic or message)
            logger.warning(message)

    def lose(self, tokens: int) -> None:
        """Count what a finished execution sampled, because nothing will come of its group."""
        self._lost += tokens

    def take_lost(self) -> int:
        """Tokens that were lost since the last call."""
        tokens, self._lost = self._lost, 0
        return tokens

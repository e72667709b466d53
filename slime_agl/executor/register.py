"""State that the executions of all steps share."""

from __future__ import annotations

import itertools
import logging

logger = logging.getLogger(__name__)

# Above any index that a data source gives.
FIRST_NUMBER = 1 << 40


class Register:
    """Shared by the executions of all steps on a runtime: numbers, warnings already given, lost tokens."""

    def __init__(self) -> None:
        self._numbers = itertools.count(FIRST_NUMBER)
        self._said: set[str] = set()
        self._lost = 0

    def next_number(self) -> int:
        """A number for an execution whose Sample has no index."""
        return next(self._numbers)

    def warn_once(self, message: str, *, topic: str = "") -> None:
        """Log a warning the first time; `topic` identifies it when its text varies."""
        if (topic or message) not in self._said:
            self._said.add(topic or message)
            logger.warning(message)

    def lose(self, tokens: int) -> None:
        """Count the sampled tokens of a finished execution whose group is given up."""
        self._lost += tokens

    def take_lost(self) -> int:
        """Tokens that were lost since the last call."""
        tokens, self._lost = self._lost, 0
        return tokens

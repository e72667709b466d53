"""Settings shared by all parts: scale, seed, language."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from chaos_parts.outcome import Outcome
from chaos_parts.trials import Trial


@dataclass(frozen=True, slots=True)
class Setting:
    """quick: the short form. checkpoint: a directory with the tokenizer. steps, workers: of a soak."""

    seed: int
    quick: bool
    checkpoint: Path
    tokenizer: Any
    steps: int = 0
    workers: int = 0

    def random(self, part: str) -> random.Random:
        """Return a generator that depends only on the seed and the part."""
        return random.Random(f"{part} {self.seed}")

    def bound(self, run: Callable[[Setting, Trial, Path], Outcome]) -> Callable[[Trial, Path], Outcome]:
        return partial(run, self)

"""A trial's findings: figures and broken promises."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Outcome:
    """load: executions, turns and trained tokens. faults: injected, by kind. errors: what agents saw, by message.

    broken: (who, what) per broken promise. left: leftovers of the run, by kind. notes: lines to print.
    """

    executions: int = 0
    turns: int = 0
    tokens: int = 0
    wrong: int = 0
    lost: int = 0
    twice: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def breaks(self, who: str, what: str) -> None:
        self.broken.append((who, what))

    def add(self, other: Outcome) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def save(self, path: Path) -> None:
        part = path.with_suffix(".part")
        part.write_text(json.dumps({one.name: getattr(self, one.name) for one in fields(self)}), "utf-8")
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Outcome:
        saved: dict[str, Any] = json.loads(path.read_text("utf-8"))
        saved["broken"] = [tuple(pair) for pair in saved["broken"]]
        return cls(**{**saved, **{name: Counter(saved[name]) for name in ("faults", "errors", "left")}})

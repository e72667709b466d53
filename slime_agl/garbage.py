"""Garbage collection in a process that serves executions."""

from __future__ import annotations

import gc

# New objects before a collection. Turns create hardly any cycles; only a few come from the HTTP library.
NEW_OBJECTS = 50_000


def relax() -> tuple[int, int, int]:
    """Collect less often and ignore existing objects; return the argument of `restore`.

    Modules and models stay forever, and a collection that walks them stalls all turns for as long as hundreds take.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    return before


def restore(before: tuple[int, int, int]) -> None:
    """Undo `relax`."""
    gc.set_threshold(*before)
    gc.unfreeze()

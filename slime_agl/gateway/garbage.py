"""The garbage collector of a process that makes turns."""

from __future__ import annotations

import gc

# New objects before a collection. What turns leave behind is freed without one; a few cycles of the HTTP library are not.
NEW_OBJECTS = 50_000


def relax() -> tuple[int, int, int]:
    """Collect less often, and pass over what exists now: modules and models are there to stay, and a collection
    that walks them stalls every turn for as long as hundreds of turns take. Returns what `restore` takes."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    return before


def restore(before: tuple[int, int, int]) -> None:
    """Collect as before `relax`."""
    gc.set_threshold(*before)
    gc.unfreeze()

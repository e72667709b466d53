"""Temporary import paths for objects that are defined in a test."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_numbers = itertools.count()


@contextmanager
def importable(thing: object) -> Iterator[str]:
    """Give `thing` an import path while the context lasts; a string is returned as it is.

    >>> with importable(my_local_agent) as path:
    ...     args.agl = {"agent": path}
    """
    if isinstance(thing, str):
        yield thing
        return
    module, name = sys.modules[__name__], f"given_{next(_numbers)}"
    setattr(module, name, thing)
    try:
        yield f"{__name__}:{name}"
    finally:
        delattr(module, name)

"""Groups taken from a data source and not yet trained: what a restart has to run again."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Group = list[Any]

# train_async.py saves step n when step n + 1 has been delivered, so slime may ask for the step before the last.
STEPS_BEFORE_LAST = 1


@dataclass(slots=True)
class _Taken:
    group: Group
    delivered: int | None = None


class Outstanding:
    """Groups taken from a data source, in order.

    A group stays while it is active: running, parked, or finished and in no batch yet. It leaves when it is put back or
    dropped for a counted reason; a delivered one is remembered until a later step has been delivered. The groups are
    the data source's own lists of pristine Samples. All methods are thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, _Taken] = {}

    def take(self, groups: Iterable[Group]) -> None:
        with self._lock:
            self._entries.update({id(group): _Taken(group) for group in groups})

    def deliver(self, step: int, groups: Iterable[Group]) -> None:
        """Note that these groups are the batch of `step`."""
        with self._lock:
            for group in groups:
                self._entries[id(group)].delivered = step
            for key, entry in list(self._entries.items()):
                if entry.delivered is not None and entry.delivered < step - STEPS_BEFORE_LAST:
                    del self._entries[key]

    def forget(self, groups: Iterable[Group]) -> None:
        """Remove groups that went back to their data source or were dropped."""
        with self._lock:
            for group in groups:
                self._entries.pop(id(group), None)

    def after(self, step: int) -> list[Group]:
        """Groups that a run resumed after training `step` has to run again: those in no batch or in a later one."""
        with self._lock:
            entries = list(self._entries.values())
        return [entry.group for entry in entries if entry.delivered is None or entry.delivered > step]

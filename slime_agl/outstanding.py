"""Which groups of a data source are on their way: what a restart would have to run again."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Group = list[Any]

# slime may ask for the step before the last one delivered: train_async.py saves step n while it holds step n + 1.
STEPS_BEFORE_LAST = 1


@dataclass(slots=True)
class _Entry:
    group: Group
    delivered: int | None = None


class Outstanding:
    """Groups that were taken from a data source, in the order they were taken.

    A group is entered when it is taken, and stays while it is under way, parked, or finished and not needed
    yet. It leaves when it is put back or dropped for a counted reason; one that was delivered to a
    step is remembered until a later step has been delivered. The groups are the data source's own lists
    of pristine Samples. All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}

    def take(self, groups: Iterable[Group]) -> None:
        with self._lock:
            self._entries.update({id(group): _Entry(group) for group in groups})

    def deliver(self, step: int, groups: Iterable[Group]) -> None:
        """These groups are the batch of `step`."""
        with self._lock:
            for group in groups:
                self._entries[id(group)].delivered = step
            for key, entry in list(self._entries.items()):
                if entry.delivered is not None and entry.delivered < step - STEPS_BEFORE_LAST:
                    del self._entries[key]

    def forget(self, groups: Iterable[Group]) -> None:
        """These groups went back to their data source, or were dropped."""
        with self._lock:
            for group in groups:
                self._entries.pop(id(group), None)

    def after(self, step: int) -> list[Group]:
        """The groups that a run which goes on after training `step` has to run again.

        Those that are in nobody's batch yet, and those that are in the batch of a later step.
        """
        with self._lock:
            entries = list(self._entries.values())
        return [entry.group for entry in entries if entry.delivered is None or entry.delivered > step]

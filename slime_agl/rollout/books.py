"""What is written down of every execution when its fate is known: counts, and the record."""

from __future__ import annotations

from collections.abc import Sequence

from slime_agl.rollout.executions import Entry
from slime_agl.rollout.recorder import Recorder
from slime_agl.rollout.tally import Tally


class Books:
    """The tally and the recorder of one step."""

    def __init__(self, tally: Tally, recorder: Recorder) -> None:
        self.tally, self._recorder = tally, recorder

    def enter(self, entries: Sequence[Entry], unused: str = "") -> None:
        """Write down executions; `unused` says why none of their tokens train, '' when they are delivered."""
        for entry in entries:
            self.tally.add(entry.execution, entry.samples, unused=unused, off_policy=entry.off_policy)
            self._recorder.write(entry.execution, entry.samples)

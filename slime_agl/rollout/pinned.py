"""An evaluation of one version of the weights, although agents go on through weight updates under `agl.async`.

Old weights cannot be brought back, so an evaluation follows the newest: an execution with tokens of older weights runs
again, at most `agl.evaluation.repeats` times over. What still is of other weights then is delivered, and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slime_agl.executor.entry import Entry, Summary
from slime_agl.rollout.tally import Tally
from slime_agl.runtime import Runtime

logger = logging.getLogger(__name__)


class Pinned:
    """Follows the weights through one evaluation. holds: executions may run again, so none is final before the end.

    Counts into the tally: `weights/versions`, which sampled tokens; `weights/repeated`, executions that ran again;
    `weights/mixed`, those delivered with tokens of other weights than the evaluation's.
    """

    def __init__(self, runtime: Runtime, tally: Tally) -> None:
        config = runtime.config
        self._runtime, self._tally = runtime, tally
        self._left = config.evaluation.repeats if config.async_.enabled else 0
        self.holds = self._left > 0
        self._version = ""
        self._seen: dict[str, None] = {}
        self._again = 0

    def overtaken(self, entries: Sequence[Entry]) -> list[int]:
        """Places of the executions with tokens that the evaluation's weights did not sample."""
        versions = [versions_of(entry.summary) for entry in entries]
        self._seen |= dict.fromkeys(version for found in versions for version in found)
        self._version = newest(self._seen)
        places = [at for at, found in enumerate(versions) if any(version != self._version for version in found)]
        self._again += len(places)
        return places

    async def repeats(self) -> bool:
        """Return True, and count it, if the executions that `overtaken` has just named are to run again."""
        again, self._again = self._again, 0
        if not self._left:
            return False
        self._left -= 1
        self._tally.count("weights/repeated", again)
        logger.info("%d executions of the evaluation run again: weights %s came meanwhile", again, self._version)
        return True

    def close(self, entries: Sequence[Entry]) -> None:
        """Count what the delivered executions are of."""
        mixed = len(self.overtaken(entries))
        if self._seen:
            self._tally.put("weights/versions", len(self._seen))
            self._tally.put("weights/mixed", mixed)
            if self._version.isdecimal():
                self._tally.put("weights/version", int(self._version))
        if mixed:
            logger.warning(
                "%d of %d executions of the evaluation have tokens of other weights than %s; evaluate less often than "
                "weights are updated, or raise agl.evaluation.repeats",
                mixed,
                len(entries),
                self._version,
            )


def versions_of(execution: Summary) -> list[str]:
    """The weights that sampled an execution's tokens, as far as the engine names them."""
    return list(dict.fromkeys(span[2] for _, spans in execution.responses for span in spans))


def newest(versions: dict[str, None]) -> str:
    """The newest of versions in the order they were seen: the highest number, or the last seen where some are names."""
    if versions and all(version.isdecimal() for version in versions):
        return max(versions, key=int)
    return next(reversed(versions), "")

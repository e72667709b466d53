"""Stop a run in which nothing has ever worked, or nothing works any more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from slime_agl.config import FailureConfig
from slime_agl.errors import AgentError, RewardError
from slime_agl.execution import LEFT_OUT, REFUSED
from slime_agl.executor.entry import Summary

# A flaky agent may fail a few times at first: before anything has worked, at least this many executions must fail.
FIRST_EXECUTIONS = 8
STALLED_BATCHES = 4
UNREWARDED = "no_reward"

_ADVICE = {
    "agent_error": "mend the agent, or what it calls",
    "engine_error": "see whether the engines behind the router answer (`slime-agl doctor`)",
    "sandbox_error": "see agl.sandbox, and whether the task's own set-up and tests work (`slime-agl tasks`)",
    "runner_error": "see the logs of the runners of agl.store: their processes end, or lose the store",
    "deadline": "raise agl.runners.timeout_seconds, or see what the agent waits for",
    "no_llm_call": (
        "they ended without an LLM call, so there is nothing to train on: the agent has to send its requests to the "
        "endpoint of the LLM resource it is given"
    ),
    LEFT_OUT: "change the rules of agl.train, or see with `slime-agl check` what the agent sends",
    REFUSED: (
        "they ended without an answered LLM call, so there is nothing to train on: the gateway refused what their "
        "agents sent; change the request as the refusal says"
    ),
    "no_reward": (
        "return a number from the agent, call agl.emit_reward, set agl.reward, or pass --custom-rm-path or --rm-type"
    ),
    "": "see why nothing that the executions sampled may train",
}


class Brake:
    """Counts groups without a usable execution, across all steps.

    batch: groups per batch. now: a monotonic clock in seconds.
    """

    def __init__(self, config: FailureConfig, batch: int, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._now = config.stall_seconds, now
        self._groups = config.stall_groups or STALLED_BATCHES * max(2, batch)
        self._first_groups = max(2, batch)
        self.worked = False
        self._reset()

    def _reset(self) -> None:
        self._failed, self._executions = 0, 0
        self._kinds: Counter[str] = Counter()
        self._first_error = ""
        self._since = self._now()

    def begin(self) -> None:
        """Begin a step. The time that the trainer took in between does not count as a stall."""
        self._reset()

    def works(self) -> None:
        """Note a group with a usable execution."""
        self.worked = True
        self._reset()

    def failed(self, executions: Sequence[Summary]) -> None:
        """Note a group without a usable execution.

        Raises:
            AgentError: the limit is reached; the message counts failures per boundary and shows the first error.
            RewardError: nothing has worked in a whole batch, and rewards are all that is missing.
        """
        self._failed += 1
        self._executions += len(executions)
        self._kinds.update(execution.failure for execution in executions)
        self._first_error = self._first_error or next((e.error for e in executions if e.error), "")
        seconds = self._now() - self._since
        if not self.worked:
            if self._failed >= self._first_groups:
                refuse_unrewarded(self._kinds, self._first_error)
                if self._executions >= FIRST_EXECUTIONS:
                    raise AgentError(self._message("nothing has worked in this run yet"))
        elif self._seconds is not None and self._failed >= self._groups and seconds >= self._seconds:
            raise AgentError(self._message(f"nothing has worked for {seconds:.0f} s (agl.failure.stall_seconds)"))

    def _message(self, since: str) -> str:
        return f"{since}: {all_failed(f'the last {self._failed} groups', self._kinds, self._first_error)}"


def refuse_unrewarded(kinds: Counter[str], error: str) -> None:
    """Raise RewardError if a missing reward is the only kind of failure: that is a setting, not bad luck."""
    if set(kinds) == {UNREWARDED}:
        raise RewardError(error)


def all_failed(who: str, kinds: Counter[str], error: str) -> str:
    """Format the error for when every execution of `who` failed. kinds: failed executions per boundary."""
    counts = ", ".join(f"{kind or 'nothing to train'} {count}" for kind, count in kinds.most_common())
    most = max(kinds, key=lambda kind: kinds[kind], default="")
    shown = f"; the first error:\n{error.rstrip()}" if error else ""
    reason = next((reason for reason in (LEFT_OUT, REFUSED) if most == "no_llm_call" and reason in error), most)
    advice = _ADVICE[reason]
    return f"all {kinds.total()} executions of {who} failed ({counts}); {advice}{shown}"

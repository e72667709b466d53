"""The metrics of a step."""

from __future__ import annotations

from collections import Counter

from slime_agl.executor.entry import Summary
from slime_agl.host import Sample


class Tally:
    """Adds up executions. Metric names start with `prefix`/agl/."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._counts: Counter[str] = Counter()
        self._values: dict[str, float] = {}
        self._turns = self._segments = self._executions = self._samples = self._most = 0
        self._gateway_seconds = self._engine_seconds = self._seconds = 0.0

    def add(self, execution: Summary, samples: list[Sample], *, unused: str = "", off_policy: int = 0) -> None:
        """Count an execution and its Samples; masked placeholders count as untrained.

        unused: why it is not delivered, '' if it is. off_policy: tokens masked because older weights sampled them.
        """
        account = execution.account
        trained = 0 if unused else sum(sum(sample.loss_mask or ()) for sample in samples)
        self._executions += 1
        self._turns += execution.turns
        self._segments += execution.segments
        self._samples += len(samples)
        self._most = max(self._most, len(samples))
        self._counts["sampled_tokens"] += execution.sampled
        self._counts["trained_tokens"] += trained
        self._counts["untrained_tokens/off_policy"] += off_policy
        masked = account.trained - trained - off_policy
        if masked > 0:
            self._counts[f"untrained_tokens/{unused or execution.failure or 'not_returned'}"] += masked
        for reason, count in (account.untrained + execution.superseded).items():
            self._counts[f"untrained_tokens/{reason}"] += count
        for reason, count in account.forks.items():
            self._counts[f"forks/{reason}"] += count
        for name, count in execution.counters.items():
            self._counts[name] += count
        self._counts["dangling_reward_links"] += execution.dangling
        if execution.failure:
            self._counts[f"failed/{execution.failure}"] += 1
        self._seconds += execution.seconds
        self._engine_seconds += execution.engine_seconds
        self._gateway_seconds += execution.gateway_seconds

    def count(self, name: str, by: int = 1) -> None:
        self._counts[name] += by

    def put(self, name: str, value: float) -> None:
        """Set a metric that is not a count; unlike counts it is reported even if zero."""
        self._values[name] = value

    def lose(self, reason: str, tokens: int) -> None:
        """Count sampled tokens of executions that are gone."""
        self._counts["sampled_tokens"] += tokens
        self._counts[f"untrained_tokens/{reason}"] += tokens

    def metrics(self) -> dict[str, float]:
        """All non-zero counts, means per execution and per turn, and the ratio of trained to sampled tokens."""
        values: dict[str, float] = {"executions": self._executions}
        if self._executions:
            values["turns_per_execution"] = self._turns / self._executions
            values["segments_per_execution"] = self._segments / self._executions
            values["samples_per_execution"] = self._samples / self._executions
            values["most_samples_of_an_execution"] = self._most
            values["seconds_per_execution"] = self._seconds / self._executions
        if self._counts["sampled_tokens"]:
            values["trained_token_ratio"] = self._counts["trained_tokens"] / self._counts["sampled_tokens"]
        if self._counts["held_tokens"]:
            values["prefix_reuse"] = self._counts["reused_tokens"] / self._counts["held_tokens"]
        if self._turns:
            values["engine_ms_per_turn"] = 1000 * self._engine_seconds / self._turns
            values["gateway_ms_per_turn"] = 1000 * max(0.0, self._gateway_seconds) / self._turns
        values |= {name: count for name, count in sorted(self._counts.items()) if count} | self._values
        return {f"{self._prefix}/agl/{name}": value for name, value in values.items()}

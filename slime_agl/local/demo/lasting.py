"""The engine's record over several steps, for Samples that were sampled across weight updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from slime_agl.errors import InvariantError
from slime_agl.trace.invariants import Seen


class _Call(NamedTuple):
    """A call's output, by all tokens up to its end."""

    tokens: tuple[int, ...]
    prompt: int
    logprobs: tuple[float, ...]


class LastingBook:
    """Answers by prompt plus output, and how often each has trained.

    A weight update cuts an answer into several, and equal tokens may have been sampled by other weights meanwhile. So a
    Sample's trained tokens must be covered by answers that have its logprobs, end to end, each used once.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[int, ...], Counter[_Call]] = {}

    def add(self, seen: Iterable[Seen]) -> None:
        """Enter further answers."""
        for one in seen:
            if one.output_ids:
                tokens = one.input_ids + one.output_ids
                self._calls.setdefault(tokens, Counter())[_Call(tokens, len(one.input_ids), one.logprobs)] += 1

    def check(self, sample: Any) -> int:
        """Use up the answers of a Sample; return its trained tokens.

        Raises:
            InvariantError: no unused answers cover its trained tokens.
        """
        trained = sum(sample.loss_mask)
        start = len(sample.tokens) - sample.response_length
        ends = [at for at in range(start + 1, len(sample.tokens) + 1) if tuple(sample.tokens[:at]) in self._calls]
        used = self._cover(sample, start, ends, sample.response_length)
        if used is None:
            raise InvariantError(
                f"sample {sample.index}: {trained} of its {len(sample.tokens)} tokens train; the engine's answers that "
                "have not trained yet do not cover them with their logprobs"
            )
        for call in used:
            self._calls[call.tokens][call] -= 1
        return trained

    def _cover(self, sample: Any, start: int, ends: list[int], upto: int) -> list[_Call] | None:
        """Answers that cover the trained ones of the first `upto` tokens of the response; None if there are none."""
        while upto and not sample.loss_mask[upto - 1]:
            upto -= 1
        if not upto:
            return []
        if start + upto not in ends:
            return None
        for call, left in self._calls[tuple(sample.tokens[: start + upto])].items():
            begin = call.prompt - start
            if left < 1 or begin < 0 or not all(sample.loss_mask[begin:upto]):
                continue
            if tuple(sample.rollout_log_probs[begin:upto]) != call.logprobs:
                continue
            before = self._cover(sample, start, ends, begin)
            if before is not None:
                return [*before, call]
        return None

"""Compare finished Samples with an independent record kept at the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from slime_agl.errors import InvariantError


@dataclass(frozen=True, slots=True)
class Seen:
    """An answered `/generate` call: prompt and output."""

    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def check_against(seen: Iterable[Seen], samples: Iterable[Any]) -> int:
    """Compare Samples with the engine's record; return the number of trained tokens checked.

    A Sample's tokens must be the prompt plus output of one call. A token trains exactly where the engine sampled it on
    the way there, with the engine's logprob, and no answer trains twice.

    Raises:
        InvariantError: naming the sample and the numbers that differ.
    """
    book = _Book(seen)
    return sum(book.check(sample) for sample in samples if not sample.remove_sample)


class _Book:
    """The engine's calls by prompt plus output, and how often each has trained."""

    def __init__(self, seen: Iterable[Seen]) -> None:
        self._calls: dict[tuple[int, ...], list[Seen]] = {}
        for call in seen:
            self._calls.setdefault(call.input_ids + call.output_ids, []).append(call)
        self._lengths = sorted({len(tokens) for tokens in self._calls})
        self._used: Counter[tuple[int, ...]] = Counter()

    def check(self, sample: Any) -> int:
        tokens = tuple(sample.tokens)
        if tokens not in self._calls:
            raise InvariantError(f"sample {sample.index}: its {len(tokens)} tokens are not a sequence the engine saw")
        start = len(tokens) - sample.response_length
        covered = 0
        for length in self._lengths:
            if start < length <= len(tokens) and tokens[:length] in self._calls:
                covered += self._check_call(sample, start, tokens[:length])
        if covered != sum(sample.loss_mask):
            raise InvariantError(
                f"sample {sample.index}: {sum(sample.loss_mask)} tokens train, the engine sampled {covered} of them"
            )
        return covered

    def _check_call(self, sample: Any, start: int, sequence: tuple[int, ...]) -> int:
        """Count the trained tokens of a call: all of its output, or none."""
        calls = self._calls[sequence]
        begin, end = len(calls[0].input_ids) - start, len(sequence) - start
        if begin < 0:
            return 0
        mask, logprobs = sample.loss_mask[begin:end], tuple(sample.rollout_log_probs[begin:end])
        if not any(mask):
            return 0
        self._used[sequence] += 1
        if self._used[sequence] > len(calls):
            raise InvariantError(f"sample {sample.index}: {sum(mask)} tokens train although they trained before")
        if not all(mask) or not any(logprobs == call.logprobs for call in calls):
            raise InvariantError(
                f"sample {sample.index}: response tokens {begin} to {end} were sampled in one answer of "
                f"{end - begin} tokens, of which {sum(mask)} train, or their logprobs differ from the engine's"
            )
        return len(mask)

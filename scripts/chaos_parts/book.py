"""Compare trained tokens with the engine's own record: id, position, logprob, once, and in the right execution."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class Answer:
    """One line of the record, and how often its tokens have trained."""

    mark: list[str]
    output: list[int]
    logprobs: list[float]
    fault: str
    lie: bool
    trained: int = 0


@dataclass(slots=True)
class Plain:
    """The part of a Sample that slime trains on."""

    prompt: str
    tokens: list[int]
    mask: list[int]
    logprobs: list[float]
    rollout: str
    attempt: str
    group: int

    @classmethod
    def of(cls, sample: Any) -> Plain:
        own = sample.metadata["agl"]
        return cls(
            sample.prompt,
            [int(token) for token in sample.tokens],
            list(sample.loss_mask or []),
            [float(value) for value in sample.rollout_log_probs or []],
            own["rollout_id"],
            own["attempt_id"],
            sample.group_index,
        )


@dataclass(slots=True)
class Book:
    """The records of one or several engines, to check Samples against."""

    answers: dict[tuple[int, ...], list[Answer]] = field(default_factory=dict)
    injected: dict[str, int] = field(default_factory=dict)
    turns: int = 0

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Book:
        book = cls()
        for path in paths:
            for line in path.read_bytes().splitlines() if path.exists() else ():
                fields = json.loads(line)
                book.turns += 1
                if fields["fault"]:
                    book.injected[fields["fault"]] = book.injected.get(fields["fault"], 0) + 1
                answer = Answer(fields["mark"], fields["output"], fields["logprobs"], fields["fault"], fields["lie"])
                if answer.output:
                    book.answers.setdefault(tuple(fields["shown"]), []).append(answer)
        return book

    def check(self, sample: Plain) -> tuple[int, list[str]]:
        """Count the trained tokens of a sample and describe each wrong one."""
        start = len(sample.tokens) - len(sample.mask)
        faults: list[str] = []
        at = trained = 0
        while at < len(sample.mask):
            if not sample.mask[at]:
                at += 1
                continue
            found = self._find(sample, start + at)
            if found is None:
                faults.append(f"token {start + at} of {sample.prompt!r} was never sampled there")
                at, trained = at + 1, trained + 1
                continue
            count = len(found.output)
            found.trained += 1
            faults += self._complaints(sample, found, at, count)
            at, trained = at + count, trained + count
        return trained, faults

    def _find(self, sample: Plain, place: int) -> Answer | None:
        """Return the answer to exactly the tokens before `place` whose output follows; untrained ones first."""
        known = self.answers.get(tuple(sample.tokens[:place]), ())
        fits = [one for one in known if sample.tokens[place : place + len(one.output)] == one.output]
        return min(fits, key=lambda one: (one.trained, -len(one.output)), default=None)

    def _complaints(self, sample: Plain, answer: Answer, at: int, count: int) -> list[str]:
        where = f"{count} tokens at {at} of {sample.prompt!r}"
        found = []
        if answer.lie:
            found.append(f"{where} come from an answer that was broken ({answer.fault})")
        if answer.trained > 1:
            found.append(f"{where} train {answer.trained} times")
        if answer.mark[1:] != [sample.rollout, sample.attempt, sample.prompt]:
            found.append(f"{where} were sampled for {answer.mark[1:]}, not for {sample.rollout}/{sample.attempt}")
        if not all(sample.mask[at : at + count]):
            found.append(f"{where}: only a part of the answer trains")
        if sample.logprobs[at : at + count] != answer.logprobs:
            found.append(f"{where} have other logprobs than the engine gave")
        return found[:1] * count

"""Check an attempt's finished Samples against nothing but the engine's record and the agent's memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from tests.oracle.dialects import Texts
from tests.oracle.engine import Answered, OracleEngine
from tests.oracle.programs import Made, Program
from tests.oracle.sayings import TAG

# Legitimate fork reasons for an unedited continuation: the template's, and text that drops the ending.
ALLOWED = (
    "unproven",
    "sentinel_lost",
    "sentinel_repeated",
    "template_refused",
    "no_marker",
    "marker_merged",
    "marker_misplaced",
    "history_rewritten",
    "ending_left_out",
)


@dataclass(slots=True)
class Findings:
    """faults: descriptions of what is wrong. The other fields are counts for the table."""

    faults: list[str] = field(default_factory=list)
    programs: int = 0
    calls: int = 0
    refused: int = 0
    turns: int = 0
    sampled: int = 0
    trained: int = 0
    samples: int = 0
    forks: Counter[str] = field(default_factory=Counter)

    def add(self, other: Findings) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Record:
    """The engine's answers by program, taken while nothing is in flight."""

    def __init__(self, engine: OracleEngine) -> None:
        self.engine = engine
        self.of: dict[int, list[Answered]] = defaultdict(list)
        for answer in engine.answers:
            self.of[answer.key[0]].append(answer)


def check(
    record: Record,
    program: Program,
    samples: Iterable[Any],
    untrained: Counter[str] | None = None,
    forks: Counter[str] | None = None,
) -> Findings:
    """Judge one attempt. untrained, forks: the product's counts by reason; None if only totals over many are known."""
    samples = list(samples)
    answers = record.of[program.number]
    found = Findings(program.faults[:], 1, len(program.made), sum(made.status == 400 for made in program.made))
    found.turns, found.sampled = len(answers), sum(len(answer.ids) for answer in answers)
    found.samples, found.forks = len(samples), forks or Counter()
    trained: Counter[int] = Counter()
    for sample in samples:
        found.faults += _check_sample(record.engine, program.number, sample, trained)
    found.trained = trained.total()
    found.faults += [f"token {number} trains {times} times" for number, times in trained.items() if times > 1]
    missing = found.sampled - len(trained)
    if untrained is not None and missing != untrained.total():
        words = f"{missing} sampled tokens do not train, {untrained.total()} have a reason"
        found.faults.append(f"{words}: {dict(untrained)}")
    found.faults += _check_fates(program, answers, trained)
    found.faults += _check_prompts(program, answers, forks)
    return found


def _check_sample(engine: OracleEngine, program: int, sample: Any, trained: Counter[int]) -> list[str]:
    """Identify every trained token by its logprob: who sampled it, after which tokens, in which answer."""
    faults: list[str] = []
    start, versions = len(sample.tokens) - sample.response_length, []
    if not len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length:
        masks, logprobs = len(sample.loss_mask), len(sample.rollout_log_probs)
        return [f"{masks} masks and {logprobs} logprobs, {sample.response_length} tokens"]
    at = 0
    while at < sample.response_length:
        if not sample.loss_mask[at]:
            at += 1
            continue
        place = engine.find(sample.rollout_log_probs[at])
        if place is None or place[1]:
            return [*faults, f"response token {at} trains with a logprob that begins no answer of the engine"]
        answer, begin, end = place[0], start + at, start + at + len(place[0].ids)
        if answer.key[0] != program:
            faults.append(f"response token {at} was sampled in execution {answer.key[0]}, it trains in {program}")
        if tuple(sample.tokens[begin:end]) != answer.ids:
            faults.append(f"response tokens from {at} on are not those that the engine sampled for {answer.word}")
        if sample.rollout_log_probs[at : at + len(answer.ids)] != answer.logprobs():
            faults.append(f"logprobs from {at} on are not those of the {len(answer.ids)} tokens of {answer.word}")
        if not all(sample.loss_mask[at : at + len(answer.ids)]):
            faults.append(f"a part of the {len(answer.ids)} tokens of {answer.word} does not train")
        if tuple(sample.tokens[:begin]) != answer.shown:
            faults.append(
                f"{answer.word} was sampled after {len(answer.shown)} other tokens than the {begin} it trains after"
            )
        trained.update(range(answer.first, answer.first + len(answer.ids)))
        versions.append(answer.version)
        at += len(answer.ids)
    told = [str(version) for version in sample.weight_versions]
    if told != versions:
        faults.append(f"weight_versions are {told}, the trained answers were sampled by {versions}")
    return faults


def _check_fates(program: Program, answers: list[Answered], trained: Counter[int]) -> list[str]:
    """Replies that an agent received train; all others do not."""
    faults: list[str] = []
    told = {plan.word for made in program.made if made.status == 200 for plan in made.plans}
    for answer in answers:
        count = sum(trained[number] > 0 for number in range(answer.first, answer.first + len(answer.ids)))
        if answer.word in told and count != len(answer.ids):
            faults.append(f"{len(answer.ids) - count} tokens of {answer.word} do not train although its agent was told")
        if answer.word not in told and count:
            faults.append(f"{count} tokens of {answer.word} train although no agent was told")
    return faults


def _check_prompts(program: Program, answers: list[Answered], forks: Counter[str] | None) -> list[str]:
    """The engine's prompt for each call: all the agent's messages, in order, after the tokens it continues."""
    faults: list[str] = []
    by_word: dict[str, list[Answered]] = defaultdict(list)
    for answer in answers:
        by_word[answer.word].append(answer)
    anew = 0
    for made in program.made:
        for plan in made.plans:
            if parts := by_word.get(plan.word):
                faults += [
                    f"call {made.key} ({made.does}, {made.dialect.path}): {fault}"
                    for fault in _check_prompt(made, parts)
                ]
                anew += _starts_anew(made, by_word, parts[0])
    if forks is not None and anew > sum(forks[reason] for reason in ALLOWED):
        faults.append(f"{anew} plain continuations started anew, forks are {dict(forks)}")
    return faults


def _check_prompt(made: Made, parts: list[Answered]) -> list[str]:
    first, faults = parts[0], []
    for before, after in zip(parts, parts[1:], strict=False):
        if after.shown != before.shown + before.ids:
            faults.append(f"{first.word} went on from other tokens than those it had sampled")
    if isinstance(made.exact, tuple):
        if first.shown != made.exact:
            faults.append(f"the agent's {len(made.exact)} ids reached the engine as {len(first.shown)} others")
    elif made.exact is not None:
        if not first.text.endswith(made.exact):
            faults.append(f"the agent's text reached the engine as {first.text[-200:]!r}")
    elif (shown := [found.group() for found in TAG.finditer(first.text)]) != made.tags:
        faults.append(f"the engine was shown the messages {shown}, the agent said {made.tags}")
    return faults


def _starts_anew(made: Made, by_word: dict[str, list[Answered]], first: Answered) -> bool:
    """True if a call that continues an unedited reply fails to extend that reply's tokens."""
    parent = by_word.get(made.parent)
    if not parent or not made.plain or (isinstance(made.dialect, Texts) and not isinstance(made.exact, tuple)):
        return False
    held = parent[-1].shown + parent[-1].ids
    return first.shown[: len(held)] != held

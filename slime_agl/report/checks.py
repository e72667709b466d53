"""Judge a recorded dry run: one finding per question, which passes, fails or deserves a look."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from slime_agl.errors import InvariantError, RecordError
from slime_agl.record.run import Record, RecordedExecution
from slime_agl.report.summary import Row, row
from slime_agl.trace.segments import account

Verdict = Literal["pass", "look", "fail"]
NO_CALL = "it ended without calling its endpoint; its client's base_url must be llm.endpoint"
COUNTED = {
    "joined_retries": "requests were retries, which joined the call they repeat",
    "ill_formed_replies": "replies had call syntax that did not parse",
    "system_messages_reshaped": "system messages were shown as the template can: see slime-agl audit",
    "context_overflow": "requests were refused because the conversation was too long",
    "sampling_overridden": "requests asked for other sampling parameters than the trainer's, which apply",
    "constrained_turns": "turns were sampled under a grammar (`response_format`): their logprobs are not the policy's",
    "dropped_calls": "calls outlived their abort",
}
# Counters by what leads their names: the finding's name, and what it means.
LEFT_ASIDE = (
    ("ignored_fields/", "ignored fields", "they change no token"),
    ("hosted_tools/", "hosted tools", "left out, as no server runs them here and nothing demands them"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One question and its answer. 'look' does not fail a check: it may be intended."""

    name: str
    verdict: Verdict
    words: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def judge(records: Sequence[Record]) -> list[Finding]:
    """Answer every question that the record alone can."""
    pairs = [(record, execution) for record in records for execution in record.executions]
    try:
        rows = [row(record, execution) for record, execution in pairs]
    except (InvariantError, RecordError) as error:
        return [Finding("masks fit the tokens", "fail", str(error))]
    return [
        _all_ended_well(rows, [execution for _, execution in pairs]),
        _every_token_is_accounted_for([execution for _, execution in pairs]),
        _masks_fit(rows),
        _samples_belong_together([execution for _, execution in pairs]),
        _one_segment(rows),
        _rewards_differ(rows),
        *_counted(rows, [execution for _, execution in pairs]),
    ]


def _all_ended_well(rows: list[Row], executions: list[RecordedExecution]) -> Finding:
    failed = Counter(entry.failure for entry in rows if entry.failure)
    if not rows:
        return Finding("agents end well", "fail", "no execution ended")
    if not failed:
        return Finding("agents end well", "pass", f"{len(rows)} executions, none failed")
    first = next(execution.error.rstrip() or NO_CALL for execution in executions if execution.failure)
    kinds = ", ".join(f"{count} {kind}" for kind, count in failed.items())
    return Finding("agents end well", "fail", f"{failed.total()} of {len(rows)} failed ({kinds}); the first:\n{first}")


def _every_token_is_accounted_for(executions: list[RecordedExecution]) -> Finding:
    name, sampled = "each sampled token trains once, or has a reason not to", 0
    untrained: Counter[str] = Counter()
    for execution in executions:
        try:
            told = account(execution.ledger, execution.segments)
        except InvariantError as error:
            return Finding(name, "fail", str(error))
        sampled += told.sampled
        untrained += told.untrained
    reasons = ", ".join(f"{count} {reason}" for reason, count in untrained.items()) or "all of them train"
    return Finding(name, "pass", f"{sampled} sampled: {reasons}")


def _masks_fit(rows: list[Row]) -> Finding:
    trained, masked = sum(entry.trained for entry in rows), sum(entry.masked for entry in rows)
    verdict: Verdict = "pass" if trained else "fail"
    return Finding("tokens train", verdict, f"{trained} tokens train, {masked} sampled ones do not")


def _samples_belong_together(executions: list[RecordedExecution]) -> Finding:
    name = "samples of an execution share rollout_id and group"
    for execution in executions:
        ids = {(sample.rollout_id, sample.group_index) for sample in execution.samples}
        if len(ids) > 1:
            return Finding(name, "fail", f"{execution.ledger} has {sorted(ids, key=str)}")
    samples = sum(len(execution.samples) for execution in executions)
    return Finding(name, "pass", f"{samples} samples of {len(executions)} executions")


def _one_segment(rows: list[Row]) -> Finding:
    forks = sum((Counter(entry.forks) for entry in rows), Counter())
    most = max((entry.segments for entry in rows), default=0)
    mean = sum(entry.segments for entry in rows) / max(1, len(rows))
    why = ", ".join(f"{reason} ×{count}" for reason, count in forks.items())
    verdict: Verdict = "look" if most > 1 else "pass"
    words = f"{mean:.2f} segments per execution, at most {most}" + (f"; forks: {why}" if why else "")
    return Finding("conversations stay whole", verdict, words)


def _rewards_differ(rows: list[Row]) -> Finding:
    name, groups = "rewards differ within a group", defaultdict(list)
    for entry in rows:
        if entry.reward is not None:
            groups[entry.step, entry.group].append(entry.reward)
    rewards = [reward for group in groups.values() for reward in group]
    if not rewards:
        return Finding(name, "fail", "no execution has a reward")
    spread = f"rewards from {min(rewards):g} to {max(rewards):g}, mean {sum(rewards) / len(rewards):.3f}"
    several = [group for group in groups.values() if len(group) > 1]
    flat = sum(len(set(group)) == 1 for group in several)
    if several and flat == len(several):
        return Finding(name, "look", f"{spread}; all {flat} groups have equal rewards, which teach nothing")
    return Finding(name, "pass", f"{spread}; {flat} of {len(several)} groups have equal rewards")


def _counted(rows: list[Row], executions: list[RecordedExecution]) -> Iterator[Finding]:
    counters = sum((Counter(execution.counters) for execution in executions), Counter())
    if counters["refused_requests"]:
        first = next((execution.refused for execution in executions if execution.refused), "")
        words = f"{counters['refused_requests']} requests were refused; the first: {first}"
        yield Finding("refused requests", "look", words)
    for name, kind, words in LEFT_ASIDE:
        left = {key.partition("/")[2]: count for key, count in sorted(counters.items()) if key.startswith(name)}
        if left:
            told = ", ".join(f"{key} ×{count}" for key, count in left.items())
            yield Finding(kind, "pass", f"{told}: {words}")
    for name, words in COUNTED.items():
        if counters[name]:
            yield Finding(name.replace("_", " "), "look", f"{counters[name]} {words}")
    turns = max(1, sum(entry.turns for entry in rows))
    wall = sum(entry.seconds for entry in rows)
    engine = sum(entry.engine_seconds for entry in rows)
    gateway = sum(
        turn.ended - turn.started - turn.engine_seconds for execution in executions for turn in execution.ledger.turns
    )
    agent = max(0.0, wall - engine - gateway)
    yield Finding(
        "time per turn",
        "pass",
        f"{1000 * wall / turns:.1f} ms: engine {1000 * engine / turns:.1f}, gateway {1000 * gateway / turns:.1f}, "
        f"agent {1000 * agent / turns:.1f}",
    )

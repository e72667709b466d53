"""The page's credit and advantages are those that training uses."""

from __future__ import annotations

import json
from argparse import Namespace
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from slime_agl.host import Sample
from slime_agl.record.reading import read_record
from slime_agl.record.run import Record, RecordedCredit, RecordedExecution, RecordWriter
from slime_agl.report.credit import credits_of
from slime_agl.report.fate import fates
from slime_agl.report.summary import row
from slime_agl.reward import normalize_rewards
from tests.report.made import made, run_of

GRPO = {"advantage_estimator": "grpo", "rewards_normalization": True, "grpo_std_normalization": True}


def record_of(*executions: RecordedExecution, agl: dict | None = None, **trainer: object) -> Record:
    header = {"name": "step", "step": 0, "agl": {"agent": "a.b", **(agl or {})}, "trainer": GRPO | trainer}
    return replace(run_of(*executions), header=header)


def execution(number: int, reward: float, *, group: int = 0, credit: tuple = (), **facts) -> RecordedExecution:
    """Two trained turns of three tokens, one Sample."""
    one = made(rollout_id=f"ro-{number}", masked_turns=1, reward=reward, **facts)
    mask = array("b", [1, 1, 1, 0, 1, 1, 1])
    sample = replace(
        one.samples[0], index=number, rollout_id=number, group_index=group, reward=reward, mask=mask, credit=credit
    )
    return replace(one, samples=(sample,))


def as_trained(record: Record) -> list[list[float]]:
    """What `normalize_rewards` gives for the same Samples, per execution and token."""
    samples = []
    for one in record.executions:
        told = one.samples[0]
        samples.append(
            Sample(
                group_index=told.group_index,
                rollout_id=told.rollout_id,
                index=told.index,
                tokens=[0] * (len(told.mask) + 1),
                response_length=len(told.mask),
                loss_mask=list(told.mask),
                reward=told.reward,
                remove_sample=told.removed,
                metadata={"agl": {"credit": [list(turn) for turn in told.credit]}},
            )
        )
    args = Namespace(agl=record.header["agl"], **record.header["trainer"])
    return [
        list(map(float, value)) if hasattr(value, "__len__") else [value]
        for value in normalize_rewards(args, samples)[1]
    ]


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus_baseline"])
def test_advantages_are_those_of_training(estimator: str):
    rewards = [1.0, 0.0, 0.25, 0.0]
    record = record_of(
        *(execution(number, reward, group=number // 2) for number, reward in enumerate(rewards)),
        advantage_estimator=estimator,
    )
    trained = as_trained(record)
    for credits, (advantage,) in zip(credits_of(record), trained, strict=True):
        assert credits.segments[0].advantage == pytest.approx(advantage, rel=1e-5)
        assert {at: one.advantage for at, one in credits.turns.items()} == pytest.approx({0: advantage, 1: advantage})


def test_masked_executions_count_in_the_baseline_and_removed_ones_do_not():
    masked, removed = execution(1, 0.0), execution(2, 0.0)
    masked = replace(masked, samples=(replace(masked.samples[0], mask=array("b", bytes(7))),))
    removed = replace(removed, samples=(replace(removed.samples[0], removed=True),))
    record = record_of(execution(0, 1.0), masked, removed, execution(3, 0.5), grpo_std_normalization=False)
    found = [one.segments[0].advantage for one in credits_of(record)]
    assert found == pytest.approx([0.5, -0.5, None, 0.0])
    assert [value or 0.0 for value in found] == pytest.approx([row[0] for row in as_trained(record)])


@pytest.mark.parametrize("baseline", ["group", "state"])
def test_turns_with_credit_of_their_own_have_their_own_advantage(baseline: str):
    def turns(first: float, second: float) -> tuple[RecordedCredit, ...]:
        total = first + second
        return (
            RecordedCredit(0, 3, total, first, state="a", total=total),
            RecordedCredit(4, 7, second, second, state="b", total=total),
        )

    record = record_of(
        execution(0, 1.5, credit=turns(0.5, 1.0)),
        execution(1, 0.0, credit=turns(0.0, 0.0)),
        agl={"credit": {"mode": "per_turn", "span": "turn", "baseline": baseline}},
    )
    trained = as_trained(record)
    found = credits_of(record)
    for credits, tokens in zip(found, trained, strict=True):
        assert credits.turns[0].advantage == pytest.approx(tokens[0], rel=1e-5)
        assert credits.turns[1].advantage == pytest.approx(tokens[4], rel=1e-5)
        assert credits.segments[0].advantage is None
    assert (found[0].turns[0].value, found[0].turns[0].earned) == (1.5, 0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"advantage_estimator": "ppo"},
        {"rewards_normalization": False},
        {"custom_reward_post_process_path": "mine.normalise"},
        {"custom_advantage_function_path": "slime_agl.advantage.gae"},
    ],
)
def test_what_only_the_trainer_knows_is_not_guessed(change: dict):
    record = record_of(execution(0, 1.0), execution(1, 0.0), **change)
    assert [one.turns[0].advantage for one in credits_of(record)] == [None, None]
    assert [one.turns[0].value for one in credits_of(record)] == [1.0, 0.0]


def test_older_records_and_strange_settings_have_no_advantages():
    old = replace(record_of(execution(0, 1.0)), header={"name": "step"})
    turn = (RecordedCredit(0, 3, 1.0, 1.0), RecordedCredit(4, 7, 1.0, 1.0))
    strange = record_of(execution(0, 1.0, credit=turn), agl={"credit": {"mode": "by magic"}})
    for record in (old, strange):
        assert credits_of(record)[0].turns[0].advantage is None


def test_a_group_that_was_not_delivered_trains_nothing_and_moves_no_baseline():
    record = record_of(execution(0, 1.0), execution(1, 0.0), execution(2, 1.0, unused="filtered", group=0))
    credits = credits_of(record)
    assert credits[2].turns[0].advantage is None
    assert credits[0].turns[0].advantage == pytest.approx(-credits[1].turns[0].advantage)
    assert {fate.why for fate in fates(record.executions[2])} == {"filtered"}
    assert row(record, record.executions[2]).untrained == {"filtered": 6}


def test_credit_and_delivery_are_read_back_as_written(tmp_path: Path):
    credit = (RecordedCredit(0, 3, 1.5, 0.5, "a", 1.5), RecordedCredit(4, 7, 1.0, 1.0, "b", 1.5))
    kept = execution(0, 1.5, credit=credit, unused="over_sampled")
    writer = RecordWriter(tmp_path / "step-000000.jsonl", {"name": "step"}, lambda ids: [b"x"] * len(ids))
    writer.write(kept)
    writer.close()
    read = read_record(tmp_path / "step-000000.jsonl").executions[0]
    assert (read.samples[0].credit, read.unused) == (credit, "over_sampled")


@pytest.mark.parametrize("credit", [[[0, 9, 1.0, 1.0, "", 0.0]], [[0, 3, "high", 1.0, "", 0.0]], [[0, 3, 1.0]], [7]])
def test_credit_of_unknown_origin_is_refused(tmp_path: Path, credit: list):
    path = tmp_path / "step-000000.jsonl"
    writer = RecordWriter(path, {"name": "step"}, lambda ids: [b"x"] * len(ids))
    writer.write(execution(0, 1.0, credit=(RecordedCredit(0, 3, 1.0, 1.0),)))
    writer.close()
    path.write_text(path.read_text().replace('[[0,3,1.0,1.0,"",0.0]]', json.dumps(credit)))
    record = read_record(path)
    assert record.executions == () and len(record.skipped) == 1

"""Spans of an attempt in order, whatever its tracer's exporter makes of their sequence ids."""

from __future__ import annotations

from slime_agl.lightning._agl import Span
from slime_agl.lightning.rewards import in_order, rewards_of
from slime_agl.trace.turn import TURN_INDEX


def turn(number: int, sequence_id: int, started: float, ended: float) -> Span:
    return made("openai.chat.completion", {TURN_INDEX: number}, sequence_id, started, ended)


def reward(value: float, sequence_id: int, moment: float) -> Span:
    attributes = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value}
    return made("agentlightning.annotation", attributes, sequence_id, moment, moment)


def made(name: str, attributes: dict, sequence_id: int, started: float, ended: float) -> Span:
    return Span.from_attributes(
        attributes=attributes,
        rollout_id="ro",
        attempt_id="at",
        sequence_id=sequence_id,
        name=name,
        start_time=started,
        end_time=ended,
    )


def after(*spans: Span) -> list[tuple[float, int]]:
    return [(item.reward, item.after) for item in rewards_of(in_order(spans))]


def test_sequence_ids_count_where_spans_are_exported_one_by_one():
    spans = [turn(0, 1, 100, 101), reward(0.1, 2, 101.0), turn(1, 3, 102, 103), reward(0.2, 4, 103.0)]
    assert after(*reversed(spans)) == [(0.1, 1), (0.2, 2)]


def test_a_batch_that_arrives_at_the_end_is_spread_over_its_turns():
    spans = [turn(0, 1, 100, 101), turn(1, 2, 102, 103), reward(0.1, 3, 101.0), reward(0.2, 4, 103.0)]
    assert after(*spans) == [(0.1, 1), (0.2, 2)]


def test_a_runners_clock_that_is_a_little_slow_does_not_move_a_reward_before_its_turn():
    assert after(turn(0, 1, 100, 101), reward(0.1, 2, 100.97), turn(1, 3, 102, 103)) == [(0.1, 1)]


def test_a_clock_that_is_wrong_moves_nothing():
    assert after(turn(0, 1, 100, 101), turn(1, 2, 102, 103), reward(0.1, 3, 1.0)) == [(0.1, 2)]


def test_a_span_is_never_moved_behind_a_turn_that_its_sequence_id_precedes():
    assert after(turn(0, 1, 100, 101), reward(0.1, 2, 500.0), turn(1, 3, 102, 103)) == [(0.1, 1)]

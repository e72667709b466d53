"""`normalize_rewards`, for slime's --custom-reward-post-process-path; the filter for --dynamic-sampling-filter-path."""

from __future__ import annotations

import importlib.util
import random
from types import SimpleNamespace
from typing import Any

import pytest

from slime_agl import host
from slime_agl.errors import RewardError
from slime_agl.host import Sample, default_args, ensure_reward_post_process
from slime_agl.host.filters import check_reward_nonzero_std as slimes_filter
from slime_agl.reward import (
    check_reward_nonzero_std,
    check_reward_nonzero_std_with_fallback,
    normalize_rewards,
)

torch = pytest.importorskip("torch", reason="torch is not installed")


def sample(reward: Any, group: int | None, rollout: int | None, mask: list[int] | None = None, **more: Any) -> Sample:
    mask = [1, 1] if mask is None else mask
    given = {"index": rollout, "group_index": group, "rollout_id": rollout, "reward": reward, "loss_mask": mask}
    return Sample(**{**given, "response_length": len(mask), "tokens": [1, *mask], **more})


def slimes(args: Any, rewards: list[float]) -> list[float]:
    """slime's default, on a batch of whole groups."""
    matrix = torch.tensor(rewards, dtype=torch.float).reshape(-1, args.n_samples_per_prompt)
    matrix = matrix - matrix.mean(dim=-1, keepdim=True)
    if args.advantage_estimator != "reinforce_plus_plus_baseline" and args.grpo_std_normalization:
        matrix = matrix / (matrix.std(dim=-1, keepdim=True) + 1e-6)
    return matrix.flatten().tolist()


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("std", [True, False])
@pytest.mark.parametrize("size", [2, 3, 8, 16, 33])
def test_without_fan_out_it_is_slimes_to_the_last_bit(estimator: str, std: bool, size: int):
    rng = random.Random(size)
    args = default_args(
        rollout_batch_size=5, n_samples_per_prompt=size, advantage_estimator=estimator, grpo_std_normalization=std
    )
    rewards = [rng.choice([0.0, 1.0, rng.gauss(0, 3)]) for _ in range(5 * size)]
    samples = [sample(reward, at // size, at) for at, reward in enumerate(rewards)]
    assert normalize_rewards(args, samples) == (rewards, slimes(args, rewards))


@pytest.mark.parametrize("change", [{"advantage_estimator": "ppo"}, {"rewards_normalization": False}])
def test_an_estimator_that_does_not_compare_gets_the_rewards_as_they_are(change: dict[str, Any]):
    args = default_args(n_samples_per_prompt=2, **change)
    assert normalize_rewards(args, [sample(1.0, 0, 0), sample(3.0, 0, 1)]) == ([1.0, 3.0], [1.0, 3.0])


def test_an_execution_of_many_samples_counts_once():
    args = default_args(rollout_batch_size=2, n_samples_per_prompt=2, grpo_std_normalization=False)
    fanned = [sample(1.0, 0, 0)] * 3 + [sample(0.0, 0, 1), sample(5.0, 1, 2), sample(7.0, 1, 3)]
    assert normalize_rewards(args, fanned)[1] == [0.5, 0.5, 0.5, -0.5, -1.0, 1.0]


def test_different_credit_within_an_execution_keeps_its_difference():
    args = default_args(n_samples_per_prompt=2, grpo_std_normalization=False)
    samples = [sample(1.0, 0, 0, [1] * 30), sample(0.0, 0, 0, [1] * 10), sample(0.0, 0, 1, [1] * 20)]
    assert normalize_rewards(args, samples)[1] == [0.625, -0.375, -0.375]


def test_executions_that_earn_the_same_in_other_ways_have_advantages_of_the_size_of_others():
    args = default_args(n_samples_per_prompt=2, grpo_std_normalization=True)
    samples = [sample(reward, 0, execution) for execution in (0, 1) for reward in (1.0, 0.0)]
    assert normalize_rewards(args, samples)[1] == pytest.approx([1.0, -1.0, 1.0, -1.0], abs=1e-5)


@pytest.mark.parametrize("torch_there", [True, False])
def test_the_spread_takes_in_what_varies_within_executions(torch_there: bool, monkeypatch: pytest.MonkeyPatch):
    if not torch_there:
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest)
        )
    args = default_args(n_samples_per_prompt=2, grpo_std_normalization=True)
    samples = [sample(1.0, 0, 0, [1] * 30), sample(0.0, 0, 0, [1] * 10), sample(0.0, 0, 1, [1] * 20)]
    spread = (0.75**2 / 2 + 0.1875 / 2) ** 0.5
    expected = [0.625 / spread, -0.375 / spread, -0.375 / spread]
    assert normalize_rewards(args, samples)[1] == pytest.approx(expected, abs=1e-5)


def test_placeholders_are_not_in_the_baseline_and_get_nothing():
    args = default_args(n_samples_per_prompt=3, grpo_std_normalization=False)
    samples = [sample(1.0, 0, 0), sample(-100.0, 0, 1, [0, 0], remove_sample=True), sample(3.0, 0, 2)]
    raw, rewards = normalize_rewards(args, samples)
    assert raw == [1.0, -100.0, 3.0] and rewards == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("mask", [[0, 0], []])
@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"])
def test_masked_executions_count_as_in_slime(mask: list[int], estimator: str):
    args = default_args(n_samples_per_prompt=4, advantage_estimator=estimator)
    samples = [sample(1.0, 0, 0, mask), *(sample(0.0, 0, at) for at in (1, 2, 3))]
    rewards = normalize_rewards(args, samples)[1]
    assert rewards == slimes(args, [1.0, 0.0, 0.0, 0.0])
    if estimator == "grpo":
        assert rewards == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_an_execution_that_is_alone_in_its_group_gets_nothing():
    args = default_args(rollout_batch_size=2, n_samples_per_prompt=2, grpo_std_normalization=True)
    samples = [sample(1.0, 0, 0), sample(9.0, 0, 1, remove_sample=True), sample(2.0, 1, 2), sample(2.0, 1, 3)]
    assert normalize_rewards(args, samples)[1] == [0.0, 0.0, 0.0, 0.0]


def test_a_missing_loss_mask_means_that_all_trains():
    args = default_args(n_samples_per_prompt=2, grpo_std_normalization=False)
    samples = [sample(1.0, 0, 0), sample(3.0, 0, 1)]
    samples[0].loss_mask = None
    assert normalize_rewards(args, samples)[1] == [-1.0, 1.0]


def test_the_reward_key_selects_the_dimension():
    args = default_args(n_samples_per_prompt=2, reward_key="right", grpo_std_normalization=False)
    samples = [sample({"right": 1.0, "short": 9.0}, 0, 0), sample({"right": 0.0, "short": 8.0}, 0, 1)]
    assert normalize_rewards(args, samples) == ([1.0, 0.0], [0.5, -0.5])


def test_without_group_and_rollout_ids_the_places_count_as_in_slime():
    args = default_args(rollout_batch_size=2, n_samples_per_prompt=2, grpo_std_normalization=False)
    rewards = [0.0, 2.0, 4.0, 8.0]
    whole = normalize_rewards(args, [sample(reward, None, None) for reward in rewards])[1]
    assert whole == [-1.0, 1.0, -2.0, 2.0]
    uneven = normalize_rewards(args, [sample(reward, None, None) for reward in rewards[:3]])[1]
    assert uneven == [-2.0, 0.0, 2.0]


def test_arguments_that_are_not_there_have_slimes_defaults():
    raw, rewards = normalize_rewards(SimpleNamespace(), [sample(0.5, None, None), sample(1.5, None, None)])
    assert raw == [0.5, 1.5] and rewards == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-5)


@pytest.mark.parametrize("reward, words", [(None, "sample 1 has no reward"), ({"a": 1.0}, "no reward 'right'")])
def test_a_missing_reward_is_named(reward: Any, words: str):
    args = default_args(n_samples_per_prompt=2, reward_key="right" if reward else None)
    good = {"right": 1.0} if reward else 1.0
    with pytest.raises(RewardError, match=words):
        normalize_rewards(args, [sample(good, 0, 0), sample(reward, 0, 1)])


def test_without_torch_it_is_the_same_up_to_rounding(monkeypatch: pytest.MonkeyPatch):
    args = default_args(rollout_batch_size=3, n_samples_per_prompt=7)
    rng = random.Random(1)
    samples = [sample(rng.gauss(0, 2), at // 7, at) for at in range(21)]
    with_torch = normalize_rewards(args, samples)[1]
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    assert normalize_rewards(args, samples)[1] == pytest.approx(with_torch, abs=1e-5)


@pytest.mark.parametrize(
    "given, sets",
    [({}, True), ({"custom_reward_post_process_path": "my.own"}, False), ({"advantage_estimator": "ppo"}, False)],
)
def test_the_flag_is_set_where_it_is_needed_and_free(given: dict[str, Any], sets: bool):
    args = default_args(**{"custom_reward_post_process_path": None, **given})
    before = args.custom_reward_post_process_path
    assert ensure_reward_post_process(args) is sets
    assert args.custom_reward_post_process_path == ("slime_agl.reward.normalize_rewards" if sets else before)
    if sets:
        assert host.load_object(args.custom_reward_post_process_path) is normalize_rewards


def verdict(args: Any, group: list[Any]) -> tuple[bool, str | None]:
    output = check_reward_nonzero_std(args, group)
    return bool(output.keep), output.reason


@pytest.mark.parametrize(
    "rewards", [[0.0, 1.0], [0.5, 0.5], [1, 1], [0.25, 0.250001], [0.25, 0.2500015], [0.1] * 7, [3.0], [0.0, -0.0]]
)
@pytest.mark.parametrize("key", [None, "right"])
def test_the_filter_is_slimes_where_nothing_fanned_out(rewards: list[float], key: str | None):
    args = default_args(reward_key=key)
    group = [sample({key: reward, "x": 9.0} if key else reward, 0, at) for at, reward in enumerate(rewards)]
    theirs = slimes_filter(args, group)
    ours = check_reward_nonzero_std(args, group)
    assert (bool(ours.keep), ours.reason, ours.keep_when_insufficient) == (bool(theirs.keep), theirs.reason, False)


def test_the_filter_counts_an_execution_once_however_many_samples_it_gave():
    alike = [[sample(0.5, 0, 0), sample(0.5, 0, 0)], [sample(0.5, 0, 1)]]
    assert verdict(default_args(), alike) == (False, "zero_std_0.5")
    assert verdict(default_args(), [*alike, [sample(1.0, 0, 2)]]) == (True, None)


def test_different_credit_within_the_executions_is_no_spread_between_them():
    planner_and_coder = [[sample(1.0, 0, at), sample(0.0, 0, at)] for at in range(2)]
    assert verdict(default_args(), planner_and_coder) == (False, "zero_std_0.5")


def test_the_filter_leaves_placeholders_out():
    placeholder = sample(None, 0, 9, remove_sample=True)
    assert verdict(default_args(), [sample(1.0, 0, 0), placeholder, sample(1.0, 0, 1)]) == (False, "zero_std_1.0")
    assert verdict(default_args(), [sample(1.0, 0, 0), placeholder, [sample(0.0, 0, 1)]]) == (True, None)
    assert verdict(default_args(), [placeholder, [placeholder]]) == (False, "nothing_trains")


def test_the_filter_counts_masked_executions_unless_nothing_trains():
    older = sample(1.0, 0, 0, [0, 0])
    assert verdict(default_args(), [older, sample(0.0, 0, 1), sample(0.0, 0, 2)]) == (True, None)
    assert verdict(default_args(), [older, sample(0.0, 0, 1, [0, 0])]) == (False, "nothing_trains")


def test_executions_without_a_number_are_told_apart_by_their_place():
    fanned = [[sample(1.0, 0, None), sample(1.0, 0, None)], [sample(0.0, 0, None)]]
    assert verdict(default_args(), fanned) == (True, None)
    assert verdict(default_args(), fanned[:1]) == (False, "zero_std_1.0")


def test_the_fallback_would_rather_keep_than_sample_another_round():
    output = check_reward_nonzero_std_with_fallback(default_args(), [[sample(1.0, 0, 0)] * 2, [sample(1.0, 0, 1)]])
    assert (output.keep, output.reason, output.keep_when_insufficient) == (False, "zero_std_1.0", True)


def test_a_missing_reward_of_a_trained_sample_is_an_error():
    with pytest.raises(RewardError, match="sample 1 has no reward"):
        check_reward_nonzero_std(default_args(), [sample(1.0, 0, 0), [sample(None, 0, 1)]])

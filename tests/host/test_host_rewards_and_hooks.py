"""Reward options, filters and sample hooks, as slime would run them."""

from __future__ import annotations

import pytest

from slime_agl import host
from slime_agl.host import filters, reward_hub, sample_hooks
from slime_agl.host.grading import boxed_answer, f1, math_correct

SEEN: list = []


async def length_reward(args, sample):
    return [len(item.response) for item in sample] if isinstance(sample, list) else len(sample.response)


async def one_reward(args, sample, bonus=0):
    return 1 + bonus


def shouting_hook(args, sample, *, rollout_id=None):
    SEEN.append(rollout_id)
    sample.response = sample.response.upper()


async def replacing_hook(args, sample, **kwargs):
    SEEN.append(kwargs)
    return host.Sample(response=sample.response + "!")


def wrong_hook(args, sample):
    return "a text"


def here(function) -> str:
    return f"{__name__}.{function.__name__}"


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()


async def test_a_samples_own_reward_function_wins_over_the_flag():
    args = host.default_args(custom_rm_path=here(length_reward))
    assert await reward_hub.async_rm(args, host.Sample(response="four")) == 4
    own = host.Sample(response="four", custom_rm_path=here(one_reward))
    assert await reward_hub.async_rm(args, own, bonus=1) == 2


async def test_a_batch_goes_to_the_reward_function_in_one_call():
    samples = [host.Sample(response="a"), host.Sample(response="bb")]
    assert await reward_hub.batched_async_rm(host.default_args(custom_rm_path=here(length_reward)), samples) == [1, 2]
    samples = [host.Sample(response=r"\boxed{1}", label="1"), host.Sample(response=r"\boxed{1}", label="2")]
    assert await reward_hub.batched_async_rm(host.default_args(rm_type="math"), samples) == [1, 0]


async def test_a_rows_rule_wins_over_the_flag():
    args = host.default_args(rm_type="math")
    sample = host.Sample(response=r"\boxed{b}", label="b c", metadata={"rm_type": "boxed_f1"})
    assert await reward_hub.async_rm(args, sample) == pytest.approx(2 / 3)
    assert await reward_hub.async_rm(args, host.Sample(metadata={"rm_type": "random"})) in (0, 1)


@pytest.mark.parametrize(
    ("rm_type", "message"), [("gpqa", "'gpqa' needs slime"), (None, "no reward is named"), (" ", "no reward")]
)
async def test_a_rule_that_is_not_there_is_not_implemented(rm_type, message):
    with pytest.raises(NotImplementedError, match=message):
        await reward_hub.async_rm(host.default_args(rm_type=rm_type), host.Sample())


def test_a_reward_option_is_seen_wherever_it_stands():
    bare = host.default_args()
    assert not host.has_reward_option(bare, host.Sample())
    assert not host.has_reward_option(bare, host.Sample(metadata=None))
    assert host.has_reward_option(host.default_args(rm_type="math"), host.Sample())
    assert host.has_reward_option(host.default_args(custom_rm_path="a.b"), host.Sample())
    assert host.has_reward_option(bare, host.Sample(custom_rm_path="a.b"))
    assert host.has_reward_option(bare, host.Sample(metadata={"rm_type": "f1"}))


def test_the_last_boxed_answer_counts():
    assert boxed_answer(r"\boxed{1} and \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert boxed_answer(r"\boxed{1") is None
    assert boxed_answer("1") is None


@pytest.mark.parametrize(
    ("answer", "label", "correct"),
    [
        ("4", "4", True),
        ("4.0", 4, True),
        ("1,000", "1000", True),
        (r"\tfrac{1}{2}", "0.5", True),
        ("2/4", "1/2", False),
        ("8/2", "4", False),
        ("4", r"\boxed{4}", True),
        (r"\text{ Yes }.", "yes", True),
        ("5", "4", False),
        ("", "", False),
        ("4", None, False),
        ("1/0", "2", False),
    ],
)
def test_numbers_are_graded_by_value_and_fractions_as_written(answer, label, correct):
    assert math_correct(rf"So \boxed{{{answer}}}", label) is correct


def test_f1_counts_shared_words_and_yes_must_be_yes():
    assert f1("the cat sat", "A cat sat down.") == pytest.approx(0.8)
    assert f1("yes", "yes indeed") == 0.0
    assert f1("dog", "cat") == f1(None, "cat") == f1("", "") == 0.0


def test_groups_without_spread_are_dropped_and_counted():
    args = host.default_args()
    gathered = filters.MetricGatherer()
    for rewards in ([1.0, 1.0], [0.0, 1.0], [0.5]):
        group = [host.Sample(reward=reward) for reward in rewards]
        output = filters.call_dynamic_filter(filters.check_reward_nonzero_std, args, group)
        if filters.should_drop_dynamic_filter_output(output, remaining_batch_size=1, target_data_size=1):
            gathered.on_dynamic_filter_drop(output.reason)
    gathered.on_dynamic_filter_drop(None)
    assert gathered.collect() == {
        "rollout/dynamic_filter/drop_zero_std_1.0": 1,
        "rollout/dynamic_filter/drop_zero_std_0.5": 1,
    }


def test_a_filter_may_answer_with_a_truth_value_or_be_absent():
    assert filters.call_dynamic_filter(None).keep
    assert filters.call_dynamic_filter(lambda args, group: False, None, []).keep is False


def test_a_group_is_kept_for_want_of_others_when_its_filter_says_so():
    output = filters.check_reward_nonzero_std_with_fallback(host.default_args(), [host.Sample(reward=1.0)] * 2)
    assert not filters.should_drop_dynamic_filter_output(output, remaining_batch_size=2, target_data_size=2)
    assert filters.should_drop_dynamic_filter_output(output, remaining_batch_size=3, target_data_size=2)


async def test_hooks_reach_every_sample_in_turn_and_may_replace_it():
    if host.slime_available():
        pytest.skip("the stand-in is tested with the stand-in's Sample")
    args = host.default_args(rollout_sample_hook_path=[here(shouting_hook), here(replacing_hook)])
    nest = [[host.Sample(response="a")], [host.Sample(response="b"), host.Sample(response="c")]]
    hooked = await sample_hooks.apply_rollout_sample_hooks(args, nest, rollout_id=7, evaluation=False)
    assert [[sample.response for sample in group] for group in hooked] == [["A!"], ["B!", "C!"]]
    assert SEEN[:2] == [7, {"rollout_id": 7, "evaluation": False}]


async def test_without_hooks_nothing_is_touched():
    value = object()
    assert await sample_hooks.apply_rollout_sample_hooks(host.default_args(), value) is value


async def test_hooks_refuse_what_is_no_sample():
    with pytest.raises(TypeError, match="got str"):
        await sample_hooks.apply_rollout_sample_hooks(
            host.default_args(rollout_sample_hook_path=[here(shouting_hook)]), "x"
        )
    args = host.default_args(rollout_sample_hook_path=[here(wrong_hook)])
    with pytest.raises(TypeError, match="wrong_hook returned str"):
        await sample_hooks.apply_rollout_sample_hooks(args, host.Sample())

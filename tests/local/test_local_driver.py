"""The driver passes a rollout function what slime passes, and refuses what slime could not train on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from slime_agl import host
from slime_agl.errors import ConfigError, InvariantError
from slime_agl.local.train.batch import flatten, normalised_rewards, train_batch
from slime_agl.local.train.driver import LocalDriver

CALLS: list = []


def finished(sample, reward=1.0, glue=0):
    sample.append_response_tokens(tokens=[5, 6], log_probs=[-0.1, -0.2])
    if glue:
        sample.append_response_tokens(tokens=[9] * glue, trainable=False)
    sample.reward = reward
    return sample


def one_each(args, rollout_id, data_source, evaluation=False):
    CALLS.append((args, rollout_id, data_source, evaluation))
    if evaluation:
        entry = {"rewards": [1.0], "truncated": [False], "samples": [finished(host.Sample(index=0))]}
        return host.RolloutFnEvalOutput(data={"set": entry}, metrics={"eval/x": 1})
    groups = data_source.get_samples(args.rollout_batch_size)
    for group in groups:
        for at, sample in enumerate(group):
            finished(sample, reward=float(at))
    return host.RolloutFnTrainOutput(samples=groups, metrics={"rollout/x": 1})


def legacy(args, rollout_id, data_source, evaluation=False):
    if evaluation:
        return {"set": {"rewards": [1.0], "truncated": [], "samples": []}}
    return one_each(args, rollout_id, data_source).samples


def bonus(args, samples):
    raw = [sample.reward for sample in samples]
    return raw, [reward + 1 for reward in raw]


def arguments(rows, **overrides):
    values = {
        "rollout_function_path": f"{__name__}.one_each",
        "prompt_data": rows(*({"input": str(at)} for at in range(4))),
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
    }
    return host.default_args(**{**values, **overrides})


@pytest.fixture
def rows(tmp_path):
    def write(*rows):
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(f'{{"input": "{row["input"]}"}}\n' for row in rows), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def test_a_step_is_called_flattened_and_turned_into_training_data(rows):
    driver = LocalDriver(arguments(rows))
    result = driver.step(3)
    assert CALLS == [(driver.args, 3, driver.data_source, False)]
    assert [sample.index for sample in result.samples] == [0, 1, 2, 3]
    assert [len(group) for group in result.groups] == [2, 2]
    assert result.metrics == {"rollout/x": 1} and result.seconds >= 0
    assert result.train_data["rollout_mask_sums"] == [2, 2, 2, 2]
    assert result.train_data["rewards"] == pytest.approx([-0.7071, 0.7071] * 2, abs=1e-3)


def test_steps_go_through_the_prompts(rows):
    driver = LocalDriver(arguments(rows))
    assert [[sample.prompt for sample in driver.step(step).samples] for step in (0, 1)] == [list("0011"), list("2233")]


def test_an_evaluation_is_called_with_the_flag_and_checked(rows):
    result = LocalDriver(arguments(rows)).evaluate(5)
    assert CALLS[0][1] == 5 and CALLS[0][3] is True
    assert (result.data["set"]["rewards"], result.metrics) == ([1.0], {"eval/x": 1})
    with pytest.raises(InvariantError, match="evaluation of set returned lists of different lengths"):
        LocalDriver(arguments(rows, eval_function_path=f"{__name__}.legacy")).evaluate(0)


def test_bare_samples_of_an_older_function_are_taken_too(rows):
    driver = LocalDriver(arguments(rows, rollout_function_path=f"{__name__}.legacy"))
    result = driver.step(0)
    assert len(result.samples) == 4 and result.metrics == {}


def test_the_reward_post_process_is_read_at_construction(rows):
    driver = LocalDriver(arguments(rows, custom_reward_post_process_path=f"{__name__}.bonus"))
    driver.args.custom_reward_post_process_path = None
    assert driver.step(0).train_data["rewards"] == [1.0, 2.0, 1.0, 2.0]


def test_a_data_source_may_be_given_or_named(rows):
    given = SimpleNamespace(get_samples=lambda count: [[host.Sample(), host.Sample()] for _ in range(count)])
    assert len(LocalDriver(arguments(rows), given).step(0).samples) == 4
    named = LocalDriver(arguments(rows, data_source_path="slime_agl.host.data_source.RolloutDataSource"))
    assert type(named.data_source).__name__ == "RolloutDataSource"
    with pytest.raises(ConfigError, match="--rollout-function-path"):
        LocalDriver(arguments(rows, rollout_function_path=f"{__name__}.one_eech"), given)


def args(**overrides):
    return host.default_args(**{"rollout_batch_size": 2, "n_samples_per_prompt": 2, **overrides})


def sibling(rollout_id):
    return finished(host.Sample(rollout_id=rollout_id))


def test_executions_that_fanned_out_are_flattened_in_order():
    nest = [[[sibling(0), sibling(0)], [sibling(1)]], [[sibling(2)], [sibling(None)]]]
    assert [sample.rollout_id for sample in flatten(args(), nest)] == [0, 0, 1, 2, None]


@pytest.mark.parametrize(
    ("nest", "message"),
    [
        ([["s", "s"]], "returned 1 groups, rollout_batch_size is 2"),
        ([["s", "s"], ["s"]], "group 1 has 1 entries, n_samples_per_prompt is 2"),
        ([["s", ["s"]], ["s", "s"]], "group 0, entry 1 is nested deeper than the first group"),
        ([[["s"], ["s"]], ["s", ["s"]]], r"group 1, entry 0 is nested 1 level\(s\) less deep"),
        ([[["s"], []], [["s"], ["s"]]], "group 0, entry 1 is an empty list"),
        ([[[], ["s"]], [["s"], ["s"]]], "returned an empty list"),
        ([[[0, 1], ["s"]], [["s"], ["s"]]], r"group 0, entry 0 is one execution with rollout_ids \[0, 1\]"),
        ([[["s", "s"], ["s"]], [["s"], ["s"]]], r"rollout_ids \[None, None\]"),
    ],
)
def test_nests_that_slime_would_misread_are_refused(nest, message):
    def built(node):
        return (
            [built(item) for item in node]
            if isinstance(node, list)
            else host.Sample(rollout_id=None if node == "s" else node)
        )

    with pytest.raises(InvariantError, match=message):
        flatten(args(), built(nest))


def test_an_execution_counts_once_whatever_it_fanned_out_into():
    samples = [
        finished(host.Sample(rollout_id=7), glue=1),
        finished(host.Sample(rollout_id=7)),
        finished(host.Sample()),
    ]
    samples[2].remove_sample = True
    batch = train_batch(args(), samples)
    assert batch["rollout_ids"] == [7, 7, 0]
    assert batch["rollout_mask_sums"] == [4, 4, 0]
    assert batch["loss_masks"] == [[1, 1, 0], [1, 1], [0, 0]]
    assert batch["rollout_log_probs"][0] == [-0.1, -0.2, 0.0]


def test_a_missing_mask_trains_everything():
    sample = host.Sample(tokens=[1, 2, 3], response_length=2, reward=0.0)
    assert train_batch(args(), [sample])["loss_masks"] == [[1, 1]]


def broken(**fields):
    sample = finished(host.Sample())
    for name, value in fields.items():
        setattr(sample, name, value)
    return sample


@pytest.mark.parametrize(
    ("second", "overrides", "message"),
    [
        ({"loss_mask": [1]}, {}, "loss_mask of sample 1 has 1 entries, its response has 2 tokens"),
        ({"rollout_log_probs": [0.0]}, {}, "rollout_log_probs of sample 1 has 1 entries"),
        ({"tokens": [5]}, {}, "sample 1 has 1 tokens, fewer than its response length 2"),
        ({"rollout_log_probs": None}, {}, "1 of 2 samples have rollout_log_probs"),
        ({"train_metadata": {}}, {}, "1 of 2 samples have train_metadata"),
        ({"rollout_routed_experts": np.zeros((1, 1, 1))}, {}, "1 of 2 samples have rollout_routed_experts"),
        ({"reward": None}, {}, "1 of 2 samples have no reward, the first of them is sample 1"),
        ({}, {"rollout_top_p": 0.9}, "rollout_top_p is 0.9, but no sample has the top-p sets"),
        ({}, {"global_batch_size": 3}, "has 2 executions, global_batch_size is 3"),
    ],
)
def test_batches_that_slime_could_not_train_on_are_refused(second, overrides, message):
    with pytest.raises(InvariantError, match=message):
        train_batch(args(**overrides), [finished(host.Sample()), broken(**second)])


def test_rewards_of_a_wrong_number_and_empty_batches_are_refused():
    with pytest.raises(InvariantError, match="returned 0 rewards for 1 samples"):
        train_batch(args(), [finished(host.Sample())], lambda args, samples: ([0.0], []))
    with pytest.raises(InvariantError, match="no samples"):
        train_batch(args(), [])


def test_rewards_are_normalised_within_groups_as_the_estimator_asks():
    samples = [host.Sample(reward=reward) for reward in (0.0, 1.0, 1.0, 1.0)]
    assert normalised_rewards(args(), samples)[1] == pytest.approx([-0.7071, 0.7071, 0.0, 0.0], abs=1e-3)
    assert normalised_rewards(args(grpo_std_normalization=False), samples)[1] == [-0.5, 0.5, 0.0, 0.0]
    assert normalised_rewards(args(advantage_estimator="ppo"), samples)[1] == [0.0, 1.0, 1.0, 1.0]
    assert normalised_rewards(args(rewards_normalization=False), samples)[1] == [0.0, 1.0, 1.0, 1.0]

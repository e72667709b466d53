"""slime's filters, hooks and reward options: each gets what slime would pass, and takes effect."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.errors import ConfigError, RewardError
from slime_agl.host import DynamicFilterOutput, Sample
from slime_agl.testing.agents import chat_agent
from tests.conftest import flat

HERE = "tests.rollout.test_rollout_hooks"


@agl.rollout
async def letters(task: Any, llm: Any) -> float | None:
    """One conversation a letter of the prompt; raises at '!'. The reward is the prompt's length, none at '?'."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as ai:
        for letter in task["prompt"]:
            if letter == "!":
                raise RuntimeError("as told")
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": letter}])
    return None if "?" in task["prompt"] else float(len(task["prompt"]))


@pytest.fixture
def seen() -> dict[str, Any]:
    """What hooks leave for the test, in slime's arguments."""
    return {}


@pytest.fixture
def run(run_rollout: Any, seen: dict[str, Any]) -> Any:
    return functools.partial(run_rollout, seen=seen)


@pytest.fixture(autouse=True)
def answers(fake_sglang: Any) -> None:
    fake_sglang.answer_with(lambda request: "ok")


def shape(value: Any) -> Any:
    return [shape(item) for item in value] if isinstance(value, list) else value.index


def drops_dull(args: Any, group: list[Any], **kwargs: Any) -> DynamicFilterOutput:
    args.seen.setdefault("groups", []).append(shape(group))
    assert all(sample.reward is not None for sample in flat(group))
    dull = flat(group)[0].prompt == "dull"
    return DynamicFilterOutput(keep=not dull, reason="dull" if dull else None)


def drops_all_but_says_enough(args: Any, group: list[Any], **kwargs: Any) -> DynamicFilterOutput:
    return DynamicFilterOutput(keep=False, reason="never", keep_when_insufficient=True)


def test_a_filter_sees_whole_groups_with_rewards_and_its_reasons_are_counted(run, seen):
    output = run(
        chat_agent(),
        ["dull", "a", "b"],
        n_samples=2,
        rollout_batch_size=2,
        over_sampling_batch_size=3,
        dynamic_sampling_filter_path=f"{HERE}.drops_dull",
    )
    assert [sample.prompt for sample in flat(output.samples)] == ["a", "a", "b", "b"]
    assert all(len(group) == 2 for group in seen["groups"])
    # Groups that nobody waited for any more may have been finished, or not.
    assert output.metrics.get("rollout/dynamic_filter/drop_dull", 0) <= 1


def test_a_filter_sees_lists_where_an_execution_fanned_out(run, seen):
    run(letters, ["ab"], n_samples=2, dynamic_sampling_filter_path=f"{HERE}.drops_dull")
    assert seen["groups"] == [[[0, 0], [1, 1]]]


def test_drop_counts_are_in_the_metrics(run):
    path = f"{HERE}.drops_dull"
    output = run(chat_agent(), ["dull", "a"], rollout_batch_size=1, dynamic_sampling_filter_path=path)
    assert [sample.prompt for sample in flat(output.samples)] == ["a"]
    assert output.metrics["rollout/dynamic_filter/drop_dull"] == 1
    assert output.metrics["rollout/agl/dropped_groups/filtered"] == 1


def drops_the_first(args: Any, group: list[Any], **kwargs: Any) -> DynamicFilterOutput:
    return DynamicFilterOutput(keep=group[0].group_index >= 9, reason="early")


def test_a_filter_that_keeps_hardly_anything_is_warned_of_once(run, caplog):
    run(
        letters,
        [str(row) for row in range(10)],
        rollout_batch_size=1,
        dynamic_sampling_filter_path=f"{HERE}.drops_the_first",
    )
    (said,) = [record.getMessage() for record in caplog.records if "dynamic-sampling-filter" in record.getMessage()]
    assert "has dropped 8 groups in step 0 and kept 0 of the 1" in said and "drop_early': 8" in said


def test_a_group_is_kept_all_the_same_when_dropping_it_would_leave_too_few(run, seen):
    path = f"{HERE}.drops_all_but_says_enough"
    output = run(chat_agent(), ["a", "b"], dynamic_sampling_filter_path=path)
    assert [sample.prompt for sample in flat(output.samples)] == ["a", "b"]
    assert "rollout/dynamic_filter/drop_never" not in output.metrics


@pytest.fixture
def graded(seen: dict[str, Any]) -> Any:
    """An agent of two conversations an execution; under the prompt 'spread' its rewards are 0.0 and 1.0 in turn."""
    luck = itertools.cycle([0.0, 1.0])

    @agl.rollout
    async def graded(task: Any, llm: Any) -> float:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as ai:
            for content in ("plan", "act"):
                await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])
        return next(luck) if task["prompt"] == "spread" else 1.0

    return graded


def test_groups_of_fanned_out_executions_are_filtered_by_the_spread_of_their_rewards(run, graded):
    path = "slime_agl.reward.check_reward_nonzero_std"
    rows = ["alike", "spread"]
    output = run(graded, rows, n_samples=2, rollout_batch_size=1, dynamic_sampling_filter_path=path)
    (group,) = output.samples
    assert [[sample.prompt for sample in execution] for execution in group] == [["spread"] * 2] * 2
    assert output.metrics["rollout/dynamic_filter/drop_zero_std_1.0"] == 1


SLIMES_FILTER = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def test_slimes_filter_on_a_fanned_out_execution_names_ours(run, graded):
    with pytest.raises(ConfigError, match=r"gave 2, 2 Samples.*slime_agl\.reward\.check_reward_nonzero_std"):
        run(graded, ["spread"], n_samples=2, dynamic_sampling_filter_path=SLIMES_FILTER)


def fails(args: Any, group: list[Any]) -> bool:
    raise KeyError("the filter's own")


def test_a_filter_that_fails_on_plain_samples_fails_as_itself(run):
    with pytest.raises(KeyError, match="the filter's own"):
        run(chat_agent(), ["a"], dynamic_sampling_filter_path=f"{HERE}.fails")


def removes_first(args: Any, groups: list[Any]) -> None:
    args.seen["filtered"] = shape(groups)
    flat(groups)[0].remove_sample = True


def test_the_sample_filter_sees_the_whole_batch_and_takes_samples_out(run, seen):
    path = f"{HERE}.removes_first"
    output = run(letters, ["a", "bc"], n_samples=2, rollout_sample_filter_path=path)
    assert seen["filtered"] == [[[0], [1]], [[2, 2], [3, 3]]]
    assert [sample.remove_sample for sample in flat(output.samples)] == [True] + [False] * 5


def sees_all(args: Any, groups: list[Any], data_source: Any) -> None:
    args.seen["all"] = [shape(group) for group in groups]
    args.seen["source"] = data_source


def test_all_samples_are_processed_filtered_and_failed_ones_too(run, run_rollout, seen):
    output = run(
        letters,
        ["dull", "!", "a"],
        rollout_batch_size=1,
        dynamic_sampling_filter_path=f"{HERE}.drops_dull",
        rollout_all_samples_process_path=f"{HERE}.sees_all",
    )
    assert shape(output.samples) == [[2]]
    assert seen["all"] == [[[0, 0, 0, 0]], [1], [2]]
    assert seen["source"] is run_rollout.data_source


def notes(args: Any, sample: Sample, evaluation: bool, rollout_id: int) -> None:
    sample.train_metadata = {"evaluation": evaluation, "step": rollout_id}


async def replaces(args: Any, sample: Sample) -> Sample:
    other = copy.deepcopy(sample)
    other.metadata = {**other.metadata, "replaced": sample.response}
    return other


@pytest.mark.parametrize("prompts", [["a", "b"], ["ab", "c"], ["a", "b!"]], ids=["flat", "fan-out", "failed"])
def test_hooks_reach_every_sample_of_a_batch(run, prompts: list[str]):
    hooks = [f"{HERE}.notes", f"{HERE}.replaces"]
    agl_section = {"failure": "negative"}
    output = run(letters, prompts, rollout_id=3, rollout_sample_hook_path=hooks, agl=agl_section)
    for sample in flat(output.samples):
        assert sample.train_metadata == {"evaluation": False, "step": 3}
        assert sample.metadata["replaced"] == sample.response and sample.reward is not None


def test_a_hook_sees_placeholders_but_does_not_bring_them_back(run, seen):
    @agl.rollout
    async def every_other(task: Any, llm: Any) -> float:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        seen["tries"] = seen.get("tries", 0) + 1
        if seen["tries"] == 1:
            raise RuntimeError("the first")
        return 1.0

    hooks = [f"{HERE}.notes", f"{HERE}.brings_back"]
    samples = flat(run(every_other, ["x"], n_samples=2, rollout_sample_hook_path=hooks).samples)
    masked = [sample for sample in samples if sample.status == Sample.Status.FAILED]
    assert len(masked) == 1 and masked[0].remove_sample and not any(masked[0].loss_mask)
    assert all(sample.train_metadata for sample in samples)


def brings_back(args: Any, sample: Sample) -> None:
    sample.remove_sample, sample.loss_mask, sample.reward = False, [1] * sample.response_length, 9.0


def test_hooks_run_in_evaluations(run, seen):
    data = run(letters, ["ab"], evaluation=True, rollout_sample_hook_path=[f"{HERE}.notes"]).data["rows"]
    assert data["samples"][0].train_metadata["evaluation"] is True


async def own_rm(args: Any, sample: Sample, **kwargs: Any) -> float:
    assert not isinstance(sample, list)
    return 7.0


async def any_rm(args: Any, samples: Any, **kwargs: Any) -> Any:
    args.seen.setdefault("scored", []).append(samples)
    return [3.0 for _ in samples] if isinstance(samples, list) else 3.0


def sets_own_rm(args: Any, sample: Sample) -> None:
    sample.custom_rm_path = None if args.seen.get("hooked") else f"{HERE}.own_rm"
    args.seen["hooked"] = True


def test_a_samples_own_reward_function_wins_over_the_flag(run, seen):
    rm = f"{HERE}.any_rm"
    hooks = [f"{HERE}.sets_own_rm"]
    output = run(letters, ["ab?"], custom_rm_path=rm, rollout_sample_hook_path=hooks)
    assert [sample.reward for sample in flat(output.samples)] == [7.0, 3.0, 3.0]
    assert [len(samples) for samples in seen["scored"]] == [2]


def test_rm_type_of_the_row_wins_over_the_flag(run, fake_sglang):
    fake_sglang.answer_with(lambda request: r"\boxed{4}")
    rows = [{"prompt": "2 + 2", "label": "4"}, {"prompt": "2 + 2", "label": "4", "metadata": {"rm_type": "f1"}}]
    first, second = flat(run(chat_agent(reward=None), rows, rm_type="math").samples)
    assert first.reward == 1 and second.reward != 1


async def useless_rm(args: Any, sample: Any, **kwargs: Any) -> Any:
    return [args.useless for _ in sample] if isinstance(sample, list) else args.useless


@pytest.mark.parametrize("group_rm", [False, True])
@pytest.mark.parametrize("useless", [None, float("nan"), {"points": float("inf")}, {"marks": 1.0}], ids=str)
def test_a_reward_option_that_gives_no_finite_number_is_named(run, useless: Any, group_rm: bool):
    key = "points" if isinstance(useless, dict) else None
    given = {"custom_rm_path": f"{HERE}.useless_rm", "useless": useless, "reward_key": key, "group_rm": group_rm}
    with pytest.raises(RewardError, match="--custom-rm-path.*sample 0"):
        run(letters, ["a?"], **given)


def test_an_eval_dataset_has_its_own_reward_function(run, seen, rollout_args, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"input": "a?"}\n', "utf-8")
    datasets = rollout_args(eval_prompt_data=["own", str(path)]).eval_datasets
    datasets[0].custom_rm_path = f"{HERE}.own_rm"
    output = run(letters, ["x"], evaluation=True, eval_datasets=datasets, custom_rm_path=f"{HERE}.any_rm")
    assert output.data["own"]["rewards"] == [7.0]


async def lengths_rm(args: Any, group: list[Any], **kwargs: Any) -> list[float]:
    args.seen["group"] = shape(group)
    return [10.0 * (at + 1) for at in range(len(group))]


@pytest.mark.parametrize("prompt, expected", [("a", [0, 1]), ("ab", [[0, 0], [1, 1]])])
def test_a_group_reward_model_sees_the_group_as_slime_shows_it(run, seen, prompt: str, expected: Any):
    output = run(letters, [prompt], n_samples=2, group_rm=True, custom_rm_path=f"{HERE}.lengths_rm")
    assert seen["group"] == expected
    assert [sample.reward for sample in flat(output.samples)] == [10.0] * len(prompt) + [20.0] * len(prompt)


async def short_rm(args: Any, group: list[Any], **kwargs: Any) -> list[float]:
    return [1.0]


@pytest.mark.parametrize("prompt", ["a", "ab"])
def test_a_group_reward_model_gives_a_reward_for_each(run, prompt: str):
    with pytest.raises(RewardError, match="1 rewards for 2 entries"):
        run(letters, [prompt], n_samples=2, group_rm=True, custom_rm_path=f"{HERE}.short_rm")


def test_a_rule_scores_every_sample_of_a_group_that_fanned_out(run):
    output = run(letters, ["ab", "a"], n_samples=2, group_rm=True, rm_type="random")
    rewards = [sample.reward for sample in flat(output.samples)]
    assert len(rewards) == 6 and set(rewards) <= {0, 1}


def test_a_group_reward_model_leaves_the_reward_of_the_failure_policy(run):
    policy = {"failure": {"agent_error": "negative", "negative_reward": -1.0}}
    rm = f"{HERE}.lengths_rm"
    output = run(letters, ["a!"], n_samples=2, group_rm=True, custom_rm_path=rm, agl=policy)
    assert [sample.reward for sample in flat(output.samples)] == [-1.0, -1.0]

"""What slime's trainer cannot accept is refused at start-up by flag, or adapted."""

from __future__ import annotations

import itertools
from argparse import Namespace
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.config import Config
from slime_agl.errors import ConfigError
from slime_agl.host import RolloutArgs, Sample, default_args
from slime_agl.host.defaults import SEGMENT_REDUCER
from slime_agl.host.trainer import Schedule, TrainerArgs
from slime_agl.reward import normalize_rewards
from slime_agl.rollout.filling import fill
from slime_agl.rollout.refusals import cautions, check_supported, problems
from slime_agl.testing.agents import chat_agent
from tests.conftest import flat

RPP = {"advantage_estimator": "reinforce_plus_plus"}
PLAIN = Config()
TAUGHT = Config(teacher="http://127.0.0.1:1")
OPD = {"use_opd": True, "opd_type": "sglang"}
FIXED = {"global_batch_size": 4, "actor_num_nodes": 1, "actor_num_gpus_per_node": 4, "micro_batch_size": 1}


def refuse(config: Any = None, *, slimes_loop: bool = False, **flags: Any) -> None:
    check_supported(RolloutArgs.read(default_args(**flags)), config or Config(), slimes_loop=slimes_loop)


@pytest.mark.parametrize(
    "flags, words",
    [
        ({**RPP, "partial_rollout": True, "mask_offpolicy_in_partial_rollout": True}, "leave the flag out"),
        (
            {"advantage_estimator": "ppo", "kl_coef": 0.1, "use_rollout_logprobs": True},
            "--kl-coef 0.1 with --use-rollout-logprobs under --advantage-estimator ppo .* leave --use-rollout-logprobs",
        ),
        ({"use_opd": True, "opd_type": "sglang"}, "--use-opd --opd-type sglang .* set agl.teacher"),
        ({**RPP, **FIXED}, "--use-dynamic-batch-size"),
        ({**FIXED, "megatron_config_path": "roles.yaml"}, "--megatron-config-path .* --use-dynamic-batch-size"),
    ],
)
def test_what_stops_slime_or_trains_wrong_is_refused_by_its_flag(flags: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        refuse(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        RPP,
        {**RPP, "kl_coef": 0.1, "use_rollout_logprobs": True},
        {**RPP, **FIXED, "use_dynamic_batch_size": True},
        {**RPP, **FIXED, "actor_num_gpus_per_node": 1},
        {**RPP, **FIXED, "debug_rollout_only": True},
        {
            **RPP,
            "partial_rollout": True,
            "mask_offpolicy_in_partial_rollout": True,
            "custom_advantage_function_path": "a.b",
        },
        {"advantage_estimator": "ppo", "kl_coef": 0.1},
        {"use_opd": True, "opd_type": "megatron"},
        FIXED,
    ],
)
def test_what_slime_can_take_is_not_refused(flags: dict[str, Any]):
    refuse(**flags)


@pytest.mark.parametrize(
    "flags, words",
    [
        ({}, "only with --use-opd --opd-type sglang; pass both"),
        ({"use_opd": True, "opd_type": "megatron"}, "--opd-type is megatron, .* leave agl.teacher out"),
        (
            {**OPD, "custom_rm_path": "slime.rollout.on_policy_distillation.reward_func"},
            "pass --custom-rm-path slime_agl.reward.custom_rm",
        ),
        (
            {
                **OPD,
                "custom_reward_post_process_path": "slime.rollout.on_policy_distillation.post_process_rewards",
            },
            "pass --custom-reward-post-process-path slime_agl.reward.normalize_rewards",
        ),
    ],
)
def test_a_teacher_needs_the_flags_that_have_slime_read_its_scores(flags: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        refuse(TAUGHT, **flags)


@pytest.mark.parametrize("flags", [OPD, {"custom_advantage_function_path": "mine.reads_the_teacher"}])
def test_a_teacher_with_these_flags_is_not_refused(flags: dict[str, Any]):
    refuse(TAUGHT, **flags)
    assert list(cautions(RolloutArgs.read(default_args(**flags)), TAUGHT)) == []


def test_a_teacher_that_is_offloaded_while_it_may_score_is_refused():
    both = {**OPD, "colocate": True, "partial_rollout": True}
    with pytest.raises(ConfigError, match="names wise, .* --colocate offloads it"):
        refuse(Config(teacher="wise"), **both)
    refuse(TAUGHT, **both)
    refuse(Config(teacher="wise"), **OPD, colocate=True)


def test_that_a_teacher_scores_at_temperature_1_is_said():
    told = " ".join(cautions(RolloutArgs.read(default_args(**OPD, rollout_temperature=0.7)), TAUGHT))
    assert "--rollout-temperature 0.7" in told and "--opd-type megatron" in told


def test_slimes_own_loop_can_replace_no_group_and_fill_no_batch():
    with pytest.raises(ConfigError, match="--rollout-function-path slime_agl.rollout.generate"):
        refuse(**RPP, slimes_loop=True)
    lists = Config(generate_returns="list")
    with pytest.raises(ConfigError, match="agl.generate_returns: list .* --use-dynamic-batch-size"):
        refuse(lists, **FIXED, slimes_loop=True)
    refuse(lists, **FIXED, use_dynamic_batch_size=True, slimes_loop=True)


def test_all_problems_are_told_at_once():
    with pytest.raises(ConfigError, match="--use-opd(.|\n)*") as refused:
        refuse(use_opd=True, opd_type="sglang", **RPP, **FIXED)
    assert len(str(refused.value).splitlines()) == 2


def test_what_depends_on_the_agent_is_said_and_not_refused():
    told = " ".join(cautions(RolloutArgs.read(default_args(advantage_estimator="ppo", kl_coef=0.1)), PLAIN))
    assert "--kl-coef 0.1" in told and "--use-kl-loss" in told
    assert "--log-passrate" in " ".join(
        cautions(RolloutArgs.read(default_args(log_passrate=True, n_samples_per_prompt=2)), PLAIN)
    )
    assert list(cautions(RolloutArgs.read(default_args()), PLAIN)) == []


@agl.rollout
async def branching(task: Any, llm: Any) -> float:
    """As many Samples as the prompt has letters; a capital fails."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        for letter in task["prompt"]:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": letter}])
            if letter.isupper():
                raise RuntimeError(letter)
    return 1.0


def test_reinforce_plus_plus_gets_no_masked_sample(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    rows = ["a", "B", "c"]
    output = run_rollout(
        branching, rows, n_samples=2, rollout_batch_size=3, **RPP, dynamic_sampling_filter_path=f"{__name__}.keep"
    )
    assert [group[0].prompt for group in output.samples] == ["a", "c", "a"]
    assert all(any(sample.loss_mask) and not sample.remove_sample for sample in flat(output.samples))
    assert output.metrics["rollout/agl/dropped_groups/failed"] == 1


def keep(args: Any, samples: list[Any], **_: Any) -> bool:
    return True


def test_a_group_of_which_one_execution_failed_is_replaced_under_reinforce_plus_plus(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    count = itertools.count()

    @agl.rollout
    async def second_fails(task: Any, llm: Any) -> float:
        number = next(count)
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        if number == 1:
            raise RuntimeError("second")
        return 1.0

    output = run_rollout(second_fails, ["a"], n_samples=2, **RPP)
    assert [any(sample.loss_mask) for sample in flat(output.samples)] == [True, True]
    assert output.metrics["rollout/agl/dropped_groups/masked"] == 1
    assert output.metrics["rollout/agl/untrained_tokens/masked"] > 0
    output = run_rollout(second_fails, ["a"], n_samples=2, advantage_estimator="ppo")
    assert "rollout/agl/dropped_groups/masked" not in output.metrics


def test_pass_rates_are_refused_when_an_execution_branches(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    with pytest.raises(ConfigError, match="gave 2 Samples .*--log-passrate"):
        run_rollout(branching, ["ab"], n_samples=2, log_passrate=True)
    run_rollout(branching, ["a"], n_samples=2, log_passrate=True)


def test_the_category_that_slime_logs_of_every_reward_is_on_failures_too(fake_sglang, run_rollout):
    fake_sglang.answer_with(lambda request: "ok")
    count = itertools.count()

    @agl.rollout
    async def half(task: Any, llm: Any) -> float | None:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        if next(count) % 2:
            raise RuntimeError("second")
        return None

    flags = {"reward_key": "score", "log_reward_category": "why", "custom_rm_path": f"{__name__}.categorised"}
    output = run_rollout(half, ["a"], n_samples=2, **flags)
    assert sorted((s.reward["why"], s.reward["score"]) for s in flat(output.samples)) == [
        ("failed", 0.0),
        ("good", 1.0),
    ]


async def categorised(args: Any, sample: Any, **_: Any) -> Any:
    return {"score": 1.0, "why": "good"}


def batch(*counts: int) -> list[list[Any]]:
    """Groups of two executions; an execution has as many Samples as `counts` says, each with a length of its own."""
    entries = [
        [
            Sample(
                rollout_id=number,
                group_index=number // 2,
                tokens=[1] * (3 + number + at),
                response_length=2,
                loss_mask=[1, 1],
                reward=float(number),
                rollout_log_probs=[-1.0, -1.0],
            )
            for at in range(count)
        ]
        for number, count in enumerate(counts)
    ]
    return [entries[at : at + 2] for at in range(0, len(entries), 2)]


@pytest.mark.parametrize("size, align", list(itertools.product((1, 2, 3), (1, 2, 4))))
@pytest.mark.parametrize("counts", [(1, 1, 1, 1), (1, 2, 1, 1), (3, 1, 5, 2), (1, 7, 1, 1, 2, 2, 1, 1)])
def test_a_filled_batch_divides_in_every_training_step_with_the_fewest_samples(size: int, align: int, counts: Any):
    schedule, groups = Schedule(4, size, align), batch(*counts)
    added = fill(groups, schedule)
    entries = [entry for group in groups for entry in group]
    for at in range(0, len(entries), 4):
        samples = sum(len(entry) for entry in entries[at : at + 4])
        assert -(-samples // size) % align == 0
        before = sum(counts[at : at + 4])
        assert not any(-(-fewer // size) % align == 0 for fewer in range(before, samples))
    assert sum(len(entry) for entry in entries) == sum(counts) + added
    assert all(len({sample.rollout_id for sample in entry}) == 1 for entry in entries)


def test_what_fills_a_batch_trains_nothing_and_changes_no_advantage():
    args = default_args(rollout_batch_size=2, n_samples_per_prompt=2)
    groups = batch(1, 2, 1, 1)
    before = normalize_rewards(args, flat(groups))[1]
    assert fill(groups, Schedule(4, 1, 4)) == 3
    samples = flat(groups)
    filling = [sample for sample in samples if sample.metadata.get("agl", {}).get("fills_batch")]
    assert len(filling) == 3 and {sample.rollout_id for sample in filling} == {0}, "the shortest"
    assert all(sample.remove_sample and not any(sample.loss_mask) for sample in filling)
    after = normalize_rewards(args, samples)[1]
    assert [reward for sample, reward in zip(samples, after, strict=True) if sample not in filling] == before
    assert [sum(sample.loss_mask) for sample in samples if sample not in filling] == [2] * 5


def test_a_branching_agent_fits_fixed_micro_batches(fake_sglang, run_rollout, token_exact):
    fake_sglang.answer_with(lambda request: "ok")
    flags = {**FIXED, "actor_num_gpus_per_node": 2, "micro_batch_size": 2}
    output = run_rollout(branching, ["ab", "c"], n_samples=2, rollout_batch_size=2, **flags)
    assert len(flat(output.samples)) == 7 and output.metrics["rollout/agl/batch_filling_samples"] == 1
    assert output.metrics["rollout/agl/samples_per_execution"] == 1.5
    output = run_rollout(chat_agent(), ["a", "b"], n_samples=2, rollout_batch_size=2, **flags)
    assert "rollout/agl/batch_filling_samples" not in output.metrics
    output = run_rollout(
        branching, ["ab", "c"], n_samples=2, rollout_batch_size=2, **flags, use_dynamic_batch_size=True
    )
    assert len(flat(output.samples)) == 6


def test_the_ranks_are_counted_as_megatron_counts_them():
    given = {
        "global_batch_size": 8,
        "actor_num_nodes": 2,
        "actor_num_gpus_per_node": 8,
        "tensor_model_parallel_size": 2,
    }
    schedule = TrainerArgs.read(Namespace(**given)).schedule
    assert schedule == Schedule(8, 1, 8)
    interleaved = {**given, "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}
    assert TrainerArgs.read(Namespace(**interleaved)).schedule == Schedule(8, 1, 4 * 2)
    assert TrainerArgs.read(Namespace(**given, context_parallel_size=2)).schedule == Schedule(8, 1, 4)
    for without in ({"use_dynamic_batch_size": True}, {"debug_rollout_only": True}, {"megatron_config_path": "x"}):
        assert TrainerArgs.read(Namespace(**given, **without)).schedule is None


@pytest.mark.parametrize(
    "unit, flags, words",
    [
        (None, {}, ""),
        ("execution", {}, ""),
        ("token", {"calculate_per_token_loss": True}, ""),
        ("segment", {"custom_pg_loss_reducer_function_path": SEGMENT_REDUCER}, ""),
        ("token", {}, "pass --calculate-per-token-loss"),
        ("segment", {}, f"is not set; pass --custom-pg-loss-reducer-function-path {SEGMENT_REDUCER}"),
        ("segment", {"custom_pg_loss_reducer_function_path": "a.b"}, "is a.b; pass"),
        ("execution", {"calculate_per_token_loss": True}, "counts each token once; leave the flag out"),
        ("execution", {"custom_pg_loss_reducer_function_path": "a.b"}, "is a.b; leave the flag out"),
        (
            None,
            {"custom_pg_loss_reducer_function_path": SEGMENT_REDUCER, "calculate_per_token_loss": True},
            "by the number of tokens again",
        ),
    ],
)
def test_flags_must_weigh_as_agl_loss_unit_says(unit: str | None, flags: dict, words: str):
    config = Config.read({"agent": "some.agent", "loss_unit": unit})
    found = list(problems(RolloutArgs.read(default_args(**flags)), config))
    assert len(found) == bool(words) and all(words in text for text in found)

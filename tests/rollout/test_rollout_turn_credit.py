"""Credit by turn inside a Sample, from the agent to the rewards by token that slime's trainer gets."""

from __future__ import annotations

import itertools
from argparse import Namespace
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.advantage import turns as turn_advantages
from slime_agl.config import Config
from slime_agl.credit.turns import unpacked
from slime_agl.errors import ConfigError, InvariantError, RewardError
from slime_agl.execution import Execution
from slime_agl.host import RolloutArgs, default_args
from slime_agl.host.defaults import GAE, TURNS
from slime_agl.record.reading import read_run
from slime_agl.report.credit import credits_of
from slime_agl.reward import normalize_rewards
from slime_agl.rollout.refusals import check_supported
from tests.conftest import flat

torch = pytest.importorskip("torch", reason="torch is not installed")
HERE = "tests.rollout.test_rollout_turn_credit"
BY_TURN = {"mode": "per_turn", "span": "turn"}
FLAGS = {"custom_advantage_function_path": TURNS, "grpo_std_normalization": False}
NUMBERS = itertools.count()


@agl.rollout
async def talks(task: Any, llm: Any) -> None:
    """One conversation of two turns, with a reward after each: 1 and 0 in even executions, 0 and 2 in odd ones."""
    odd = next(NUMBERS) % 2
    messages: list[Any] = [{"role": "user", "content": "first"}]
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as ai:
        for reward in (0.0, 2.0) if odd else (1.0, 0.0):
            answer = await ai.chat.completions.create(model="m", messages=messages)
            messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "on"}]
            agl.emit_reward(reward)


@pytest.fixture(autouse=True)
def answers(fake_sglang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HERE}.NUMBERS", itertools.count())
    fake_sglang.answer_with(lambda request: "ok")


def arguments(credit: dict[str, Any], **flags: Any) -> Namespace:
    return default_args(**{**FLAGS, "agl": {"agent": "some.agent", "credit": credit}, **flags})


def by_turn(output: Any, args: Namespace) -> list[list[float]]:
    """What the turns of each Sample train on, by the function that slime calls; 0 where nothing was sampled."""
    samples = flat(output.samples)
    _, rewards = normalize_rewards(args, samples)
    sizes = [sample.response_length for sample in samples]
    data = {"rewards": rewards, "total_lengths": [len(sample.tokens) for sample in samples], "response_lengths": sizes}
    data["kl"] = [torch.zeros(size) for size in sizes]
    turn_advantages(args, data)
    out = []
    for sample, advantages in zip(samples, data["advantages"], strict=True):
        kept = torch.tensor(sample.loss_mask) > 0
        assert not advantages[~kept].any() and advantages.dtype == torch.float32
        spans = [advantages[turn.start : turn.end] for turn in unpacked(sample.metadata)]
        assert all(bool((span == span[0]).all()) for span in spans)
        assert sum(len(span) for span in spans) == int(kept.sum())
        out.append([float(span[0]) for span in spans])
    return out


def test_each_turn_has_the_advantage_of_what_was_earned_from_it_on(run_rollout, token_exact, fake_sglang):
    output = run_rollout(talks, ["x"], n_samples=2, agl={"credit": BY_TURN}, **FLAGS)
    # Returns 1, 0 and 2, 2; the executions are worth 0.5 and 2, so the baseline is 1.25.
    assert sorted(by_turn(output, arguments(BY_TURN))) == [[-0.25, -1.25], [0.75, 0.75]]
    assert sorted(sample.reward for sample in flat(output.samples)) == [1.0, 2.0]
    token_exact(fake_sglang, output.samples)


def test_turns_that_answered_the_same_prompt_are_compared_too(run_rollout):
    credit = {**BY_TURN, "baseline": "state", "state_weight": 10.0}
    output = run_rollout(talks, ["x"], n_samples=2, agl={"credit": credit}, **FLAGS)
    # By what an execution earned in all (1 and 2) -0.5 and 0.5. Both turns have the same prompts: first returns 1 and
    # 2, second returns 0 and 2.
    assert sorted(by_turn(output, arguments(credit))) == [[-5.5, -10.5], [5.5, 10.5]]


def test_for_gae_a_turns_own_reward_stands_at_its_last_token(run_rollout):
    flags = {"custom_advantage_function_path": GAE, "advantage_estimator": "ppo"}
    output = run_rollout(talks, ["x"], agl={"credit": BY_TURN}, **flags)
    (sample,) = flat(output.samples)
    _, (rewards,) = normalize_rewards(arguments(BY_TURN, **flags), [sample])
    first, second = unpacked(sample.metadata)
    expected = torch.zeros(sample.response_length)
    expected[first.end - 1] = 1.0
    assert rewards.tolist() == expected.tolist()
    assert (first.reward, second.reward) == (1.0, 0.0)


def lengths(execution: Execution) -> list[float]:
    return [float(turn.index + 1) for turn in execution.ledger.turns]


async def only_the_last(execution: Execution) -> dict[int, float]:
    return {len(execution.ledger.turns) - 1: 4.0}


@pytest.mark.parametrize(
    "function, expected", [(lengths, [-0.5, 0.5]), (only_the_last, [-2.0, 2.0])], ids=["per turn", "the last turn only"]
)
def test_a_function_gives_credit(run_rollout, function: Any, expected: list[float]):
    credit = {"span": "turn", "function": f"{HERE}.{function.__name__}"}
    output = run_rollout(talks, ["x"], n_samples=2, agl={"credit": credit}, **FLAGS)
    assert by_turn(output, arguments(credit)) == [expected] * 2


def too_few(execution: Execution) -> list[float]:
    return [1.0]


def no_number(execution: Execution) -> list[Any]:
    return [1.0, float("nan")]


def nowhere(execution: Execution) -> dict[int, float]:
    return {2: 1.0}


def breaks(execution: Execution) -> list[float]:
    raise KeyError("oh")


@pytest.mark.parametrize(
    "function, words",
    [
        (too_few, "gave 1 numbers for 2 turns"),
        (no_number, "gave turn 1 nan"),
        (nowhere, "turn 2; the execution has turns 0 to 1"),
        (breaks, "failed: KeyError: 'oh'"),
    ],
)
def test_a_function_that_gives_no_credit_is_named(run_rollout, function: Any, words: str):
    credit = {"span": "turn", "function": f"{HERE}.{function.__name__}"}
    with pytest.raises(RewardError, match=rf"agl.credit.function on rollout ro-.* {words}"):
        run_rollout(talks, ["x"], agl={"credit": credit}, **FLAGS)


async def _once(llm: Any) -> None:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as ai:
        await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "first"}])


@agl.rollout
async def fails_every_other_time(task: Any, llm: Any) -> float:
    await _once(llm)
    if next(NUMBERS) % 2:
        raise RuntimeError("as told")
    return 1.0


@pytest.mark.parametrize("policy, expected", [("mask", [[0.0], []]), ("negative", [[2.0], [-2.0]])])
def test_failed_executions(run_rollout, policy: str, expected: list[list[float]]):
    section = {"credit": BY_TURN, "failure": {"agent_error": policy, "negative_reward": -3.0}}
    output = run_rollout(fails_every_other_time, ["x"], n_samples=2, agl=section, **FLAGS)
    samples = flat(output.samples)
    assert sorted(by_turn(output, arguments(BY_TURN)), reverse=True) == expected
    assert all(tensor.shape == (sample.response_length,) for sample, tensor in _pairs(samples))


def _pairs(samples: list[Any]) -> Any:
    return zip(samples, normalize_rewards(arguments(BY_TURN), samples)[1], strict=True)


def test_what_slime_scores_covers_the_whole_sample(run_rollout):
    async_rm = f"{HERE}.constant"
    output = run_rollout(silent, ["x"], n_samples=2, agl={"credit": BY_TURN}, custom_rm_path=async_rm, **FLAGS)
    samples = flat(output.samples)
    assert not any(unpacked(sample.metadata) for sample in samples)
    assert normalize_rewards(arguments(BY_TURN), samples) == ([2.0, 2.0], [0.0, 0.0])


async def constant(args: Any, sample: Any, **_: Any) -> Any:
    return [2.0] * len(sample) if isinstance(sample, list) else 2.0


@agl.rollout
async def silent(task: Any, llm: Any) -> None:
    await _once(llm)


def test_rewards_that_do_not_cover_the_response_are_refused():
    data = {"rewards": [torch.zeros(3)], "total_lengths": [9], "response_lengths": [4], "kl": [torch.zeros(4)]}
    with pytest.raises(InvariantError, match="3 rewards by token for a response of 4 tokens"):
        turn_advantages(Namespace(), data)


@pytest.mark.parametrize(
    "credit, flags, words",
    [
        (BY_TURN, {"custom_advantage_function_path": None}, f"pass --custom-advantage-function-path {TURNS}"),
        (BY_TURN, {"custom_reward_post_process_path": None}, "no turn's credit would reach the trainer"),
        ({}, {"custom_advantage_function_path": GAE}, "needs a critic, and --advantage-estimator grpo trains none"),
        ({}, {"advantage_estimator": "ppo"}, f"trains a critic for them; pass {GAE}"),
        (
            {**BY_TURN, "discount": 0.5},
            {"custom_advantage_function_path": GAE, "advantage_estimator": "ppo"},
            "discounted twice",
        ),
        (
            {},
            {"custom_advantage_function_path": GAE, "advantage_estimator": "ppo", "megatron_config_path": "roles.yaml"},
            "critic ignores --custom-advantage-function-path",
        ),
    ],
)
def test_what_would_not_be_applied_is_refused(credit: dict[str, Any], flags: dict[str, Any], words: str):
    args = arguments(credit, **flags)
    with pytest.raises(ConfigError, match=words):
        check_supported(RolloutArgs.read(args), Config.read(args.agl))


@pytest.mark.parametrize(
    "credit, words",
    [
        ({"span": "turn"}, "agl.credit.mode is 'outcome'"),
        ({"function": "a.b"}, "agl.credit.span is 'sample'"),
        ({"baseline": "state"}, "agl.credit.span is 'sample'"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(credit: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        Config.read({"agent": "some.agent", "credit": credit})


@pytest.mark.parametrize("baseline", ["group", "state"])
def test_the_page_shows_the_advantages_that_the_trainer_gets(run_rollout, tmp_path, baseline: str):
    credit = {**BY_TURN, "baseline": baseline}
    section = {"credit": credit, "record_dir": str(tmp_path)}
    output = run_rollout(talks, ["q"], n_samples=2, agl=section, **FLAGS)
    trained = by_turn(output, arguments(credit))
    (record,) = read_run(tmp_path)
    shown = {
        execution.samples[0].index: [one.advantage for _, one in sorted(credits.turns.items())]
        for execution, credits in zip(record.executions, credits_of(record), strict=True)
    }
    assert [shown[sample.index] for sample in flat(output.samples)] == [pytest.approx(row) for row in trained]
    assert len(trained) == 2 and any(trained[0])

"""Every cell of the guide's estimator table, tested with slime's own functions.

Skipped unless slime's checkout is on PYTHONPATH; test_rollout_refusals tests refusals without it.
"""

from __future__ import annotations

import copy
import importlib
import itertools
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import agentlightning as agl
import httpx
import openai
import pytest

from slime_agl import host
from slime_agl.credit.turns import unpacked
from slime_agl.errors import ConfigError
from slime_agl.host.defaults import GAE
from slime_agl.host.trainer import ESTIMATORS
from slime_agl.preflight.estimators import FAILED, FEATURES, FILLED, TAUGHT, verdict
from slime_agl.reward import normalize_rewards
from slime_agl.testing import FakeReplay, FakeTeacher
from tests.conftest import flat
from tests.rollout.slimes_trainer import ARGS, Trainer, loaded

pytest.importorskip("slime.utils.types", reason="slime is not on PYTHONPATH", exc_type=ImportError)
pytestmark = pytest.mark.needs_slime

INSIDE = "credit by turn inside a Sample (`agl.credit.span: turn`)"
BRANCHES = {"several Samples of an execution", "credit by turn or by agent (`agl.credit`)", INSIDE, FILLED}
FAILS = FAILED
REFUSED_AT_START = [
    (name, feature) for name in ESTIMATORS for feature in FEATURES if verdict(name, feature) == "refused"
]


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    with loaded() as functions:
        yield functions


@agl.rollout
async def converses(task: Any, llm: Any) -> float:
    """Two turns with a user message between them, as often as the prompt has letters.

    One execution does no more than the first letter; where the prompt has `!`, one fails in the end. Emits a reward
    after each conversation and returns another, so that credit by turn differs.
    """
    number = next(COUNT)
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        for at, letter in enumerate(task["prompt"].strip("!")[: 1 if number == 0 else None]):
            messages: list[Any] = [{"role": "user", "content": letter}]
            for _ in range(2):
                answer = await ai.chat.completions.create(model="m", messages=messages)
                messages += [answer.choices[0].message.model_dump(exclude_none=True)]
                messages += [{"role": "user", "content": f"and then, after {letter}?"}]
            agl.emit_reward(at + number % 3.0)
    if "!" in task["prompt"] and number == FAILING:
        raise RuntimeError("as told")
    return number % 3.0


COUNT = itertools.count()
FAILING = 1


async def graded(args: Any, samples: Any, **_: Any) -> list[float]:
    return [float(at % 3) for at, _ in enumerate(samples)]


@pytest.fixture
def teacher() -> Iterator[FakeTeacher]:
    with FakeTeacher() as one:
        yield one


@pytest.fixture
def samples(
    fake_sglang: Any, teacher: FakeTeacher, run_rollout: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Any]]:
    """`samples(feature, estimator)`: two groups of four executions with the feature, as returned by `generate`."""

    def make(feature: str, estimator: str = "grpo", **more: Any) -> list[Any]:
        monkeypatch.setattr(f"{__name__}.COUNT", itertools.count())
        words = itertools.cycle(("one two", "three", "four five six seven"))
        fake_sglang.answer_with(lambda request: next(words))
        flags = {**FEATURES[feature], **more}
        rows = ["ab", "c"] if feature in BRANCHES else ["a!", "b"] if feature == FAILS else ["a", "b"]
        if feature == "a turn that was cut off":
            flags["rollout_max_response_len"] = 3
        if feature == "replay data":
            fake_sglang.replay = FakeReplay(layers=2, choices=2)
        if "--group-rm" in feature:
            flags["custom_rm_path"] = f"{__name__}.graded"
        section = {"credit": {"mode": "per_turn", "discount": 0.5}} if "agl.credit" in feature else {}
        section = flags.pop("agl", section)
        if feature == TAUGHT:
            section = {"teacher": teacher.url}
        update = _weight_update(fake_sglang) if "weight update" in feature else None
        output = run_rollout(
            converses, rows, n_samples=4, rollout_batch_size=2, advantage_estimator=estimator, agl=section, **flags
        )
        if update is not None:
            update.join()
        made = flat(output.samples)
        _shows(feature, made)
        return made

    return make


def _weight_update(fake: Any) -> threading.Thread:
    """Aborts all requests when the first eight are there, and goes on with other weights."""
    fake.hold().abort_partial(1)

    def update() -> None:
        fake.wait_for_requests(8)
        httpx.post(f"{fake.url}/pause_generation", json={})
        fake.weight_version = "2"
        httpx.post(f"{fake.url}/continue_generation", json={})
        fake.release()

    thread = threading.Thread(target=update)
    thread.start()
    return thread


def _shows(feature: str, made: list[Any]) -> None:
    """The Samples have what the feature is about."""
    assert any(0 in sample.loss_mask and 1 in sample.loss_mask for sample in made), "none has glue"
    if feature in BRANCHES:
        assert len(made) > 8
    if feature == "a turn that was cut off":
        assert {sample.status for sample in made} == {host.Sample.Status.TRUNCATED}
    if "weight update" in feature:
        assert any({"1", "2"} <= set(sample.weight_versions) for sample in made)
    if feature == "replay data":
        assert all(sample.rollout_routed_experts is not None for sample in made)
    if feature == INSIDE:
        assert any(len({turn.value for turn in unpacked(sample.metadata)}) == 2 for sample in made)
    if feature == TAUGHT:
        assert all(len(sample.teacher_log_probs) == sample.response_length for sample in made)
    elif "agl.credit" in feature and feature != INSIDE:
        assert any(len({s.reward for s in made if s.rollout_id == sample.rollout_id}) > 1 for sample in made)


def arguments(estimator: str, feature: str, **more: Any) -> Namespace:
    given = {**FEATURES[feature], "advantage_estimator": estimator, **more}
    if estimator.startswith("reinforce"):
        given["normalize_advantages"] = True  # slime demands it
    if "agl" in given:
        given["agl"] = {"agent": "some.agent", **given["agl"]}
    base = host.default_args(rollout_batch_size=2, n_samples_per_prompt=4, global_batch_size=8)
    return Namespace(**{**vars(base), **ARGS, **given})


@pytest.mark.parametrize("feature", [name for name in FEATURES if name != "`--use-opd --opd-type sglang`"])
def test_what_the_table_grants_trains_sampled_tokens_only(trainer: Trainer, samples, feature: str):
    made = samples(feature, next(name for name in ESTIMATORS if verdict(name, feature) != "refused"))
    if feature == FAILS:
        assert any(sample.remove_sample for sample in made)
    if "--mask-offpolicy" in feature:
        # As of an execution that older weights had sampled as a whole.
        made[0].loss_mask = [0] * made[0].response_length
    for estimator in ESTIMATORS:
        if verdict(estimator, feature) == "refused":
            continue
        mine = samples(feature, estimator) if verdict(estimator, feature) == "group replaced" else copy.deepcopy(made)
        args = arguments(estimator, feature)
        data = trainer.train_data(args, mine, normalize_rewards)
        assert trainer.schedule(args, data, ranks=4 if feature == FILLED else 1) == 8 // args.global_batch_size
        batch = trainer.advantages(args, data)
        gradient = trainer.gradient(args, data, batch)
        for mask, advantages, sizes in zip(data["loss_masks"], batch["advantages"], gradient, strict=True):
            assert bool(advantages.isfinite().all()), (estimator, feature)
            for trains, advantage, size in zip(mask, advantages.tolist(), sizes, strict=True):
                assert trains or size == 0.0, f"{estimator}: a token that was not sampled has a gradient"
                # A token that was sampled out of a top-p set of one has none by right.
                has_none = trains and abs(advantage) > 1e-6 and size == 0.0 and feature != "replay data"
                assert not has_none, f"{estimator}: a sampled token has none"
        assert any(map(any, gradient)), f"{estimator}: nothing trains"
        depends = depends_on_glue(trainer, args, data, batch)
        assert depends == (verdict(estimator, feature) == "warned of"), (estimator, feature)


def depends_on_glue(trainer: Trainer, args: Namespace, data: dict[str, Any], batch: dict[str, Any]) -> bool:
    """Whether the advantage of a sampled token changes with the logprobs of tokens that were not sampled."""
    other = trainer.advantages(args, data, glue_seed=1)
    return any(
        not bool(((one - two).abs() * mask).max() < 1e-6)
        for one, two, mask in zip(batch["advantages"], other["advantages"], batch["loss_masks"], strict=True)
    )


def test_each_turn_inside_a_sample_has_its_own_advantage(trainer: Trainer, samples):
    args = arguments("grpo", INSIDE)
    made = samples(INSIDE)
    batch = trainer.advantages(args, trainer.train_data(args, made, normalize_rewards))
    differ = 0
    for sample, advantages in zip(made, batch["advantages"], strict=True):
        turns = unpacked(sample.metadata)
        values = [advantages[turn.start : turn.end].unique().tolist() for turn in turns]
        assert all(len(value) == 1 for value in values)
        assert (values[0] == values[1]) == (turns[0].value == turns[1].value)
        differ += values[0] != values[1]
    assert differ


def test_slime_moves_each_token_by_the_teachers_logprob_of_that_token(trainer: Trainer, samples, teacher: FakeTeacher):
    args = arguments("grpo", TAUGHT, opd_kl_coef=0.5)
    made = samples(TAUGHT)
    data = trainer.train_data(args, made, normalize_rewards)
    taught = trainer.advantages(args, data)
    alone = trainer.advantages(Namespace(**{**vars(args), "use_opd": False}), data)
    for at, sample in enumerate(made):
        expected = teacher.scores(sample.tokens, sample.response_length)
        given = taught["advantages"][at], alone["advantages"][at], taught["log_probs"][at]
        for kept, with_it, without, own, its in zip(sample.loss_mask, *given, expected, strict=True):
            assert not kept or float(with_it) == pytest.approx(float(without) - 0.5 * (float(own) - its), abs=1e-5)


def test_gae_takes_no_value_of_a_token_that_was_not_sampled(trainer: Trainer, samples):
    feature = f"`--custom-advantage-function-path {GAE}`"
    args = arguments("ppo", feature, gamma=0.9)
    data = trainer.train_data(args, samples(feature, "ppo"), normalize_rewards)

    def sampled(path: str | None, glue: float) -> tuple[list[float], list[float]]:
        given = Namespace(**{**vars(args), "custom_advantage_function_path": path})
        batch = trainer.advantages(given, data, glue_value=glue)
        names = ("advantages", "returns")
        kept = [[one[mask > 0] for one, mask in zip(batch[name], batch["loss_masks"], strict=True)] for name in names]
        return tuple(torch.cat(rows).tolist() for rows in kept)

    torch = pytest.importorskip("torch")
    assert sampled(GAE, 0.0) == sampled(GAE, 50.0)
    assert sampled(None, 0.0) != sampled(None, 50.0)  # slime's own does


@pytest.mark.parametrize("path", [GAE, None])
def test_gae_is_slimes_where_everything_was_sampled(trainer: Trainer, samples, path: str | None):
    feature = "tool results inside a Sample"
    made = samples(feature)
    for sample in made:
        sample.loss_mask = [1] * sample.response_length
    args = arguments("ppo", feature, gamma=0.9, kl_coef=0.1)
    data = trainer.train_data(args, made, normalize_rewards)
    args.custom_advantage_function_path = path
    batch = trainer.advantages(args, data)
    args.custom_advantage_function_path = None
    own = trainer.advantages(args, data)
    for name in ("advantages", "returns"):
        for one, other in zip(batch[name], own[name], strict=True):
            assert one.tolist() == pytest.approx(other.tolist(), abs=1e-5)


@pytest.mark.parametrize("estimator, feature", REFUSED_AT_START)
def test_what_the_table_refuses_would_stop_slime_or_train_wrong(
    trainer: Trainer, samples, estimator: str, feature: str
):
    with pytest.raises(ConfigError):
        samples(feature, estimator)
    args = arguments(estimator, feature)
    if args.custom_advantage_function_path is not None:
        return  # it would not stop slime: a critic is missing, or trained for nothing
    if "opd" in feature:
        distils = importlib.import_module("slime.rollout.on_policy_distillation").post_process_rewards
        with pytest.raises(TypeError, match="not subscriptable"):
            trainer.train_data(args, samples(FAILS), distils)
        return
    made = samples("several Samples of an execution" if feature == FILLED else feature)
    if "--mask-offpolicy" in feature:
        made[0].loss_mask = [0] * made[0].response_length
    data = trainer.train_data(args, made, normalize_rewards)
    if feature == FILLED:
        # Without what fills the batch, and with it.
        with pytest.raises(AssertionError, match="static path"):
            trainer.schedule(args, data, ranks=4)
        with pytest.raises(AssertionError, match="fully masked"):
            trainer.advantages(args, trainer.train_data(args, samples(feature), normalize_rewards))
    elif estimator == "reinforce_plus_plus":
        with pytest.raises(AssertionError, match="fully masked"):
            trainer.advantages(args, data)
    else:
        assert depends_on_glue(trainer, args, data, trainer.advantages(args, data))


def test_a_placeholder_is_what_stops_reinforce_plus_plus(trainer: Trainer, samples):
    with pytest.raises(AssertionError, match="fully masked"):
        args = arguments("reinforce_plus_plus", FAILS)
        trainer.advantages(args, trainer.train_data(args, samples(FAILS), normalize_rewards))


def test_slimes_pass_rates_take_one_sample_of_an_execution(samples):
    rate = importlib.import_module("slime.observability.metric_utils").compute_pass_rate
    made = samples("several Samples of an execution")
    with pytest.raises(AssertionError, match="len"):
        rate([sample.reward for sample in made], group_size=4, num_groups=2)
    with pytest.raises(ConfigError, match="--log-passrate"):
        samples("several Samples of an execution", log_passrate=True)

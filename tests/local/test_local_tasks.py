"""Each further task of train-demo is learned; a misplaced token, logprob or reward stops it or keeps it from that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slime_agl.errors import ConfigError, InvariantError, TeacherError
from slime_agl.local.demo.trial import Trial
from slime_agl.local.engine import scheduler
from slime_agl.local.engine.model import LanguageModel
from slime_agl.local.train.recipes import TASKS
from slime_agl.local.train.tiny_tokenizer import tiny_tokenizer
from slime_agl.rollout import shutdown
from slime_agl.testing.tasks import right_turns

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pydantic")

LEARNED = ("distill", "errands", "turns", "async")


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], SimpleNamespace]]:
    """trials(task): its recipe and a running trial, made once."""
    made: dict[str, SimpleNamespace] = {}
    torch.set_num_threads(1)

    def of(task: str) -> SimpleNamespace:
        if task not in made:
            recipe = TASKS[task](tmp_path_factory.mktemp("task"), 0)
            made[task] = SimpleNamespace(recipe=recipe, trial=Trial(recipe, seed=0).__enter__())
        return made[task]

    yield of
    for one in made.values():
        one.trial.__exit__(None, None, None)


@pytest.fixture
def training(trials) -> Iterator[Callable[..., Iterator[Any]]]:
    """training(task, small=False, corrupt=import path, ...): the checked steps of a run. small: of four executions."""

    def begin(task: str, *, small: bool = False, corrupt: str | None = None, **more: Any) -> Iterator[Any]:
        shutdown()  # a runtime counts the steps of one run
        few = {"rollout_batch_size": 2, "n_samples_per_prompt": 2} if small else {}
        path = corrupt and f"{__name__}.{corrupt}"
        return trials(task).trial.steps(**{**few, "rollout_sample_filter_path": path, **more})

    yield begin
    shutdown()


def until(steps: Iterator[Any], most: int, learned: Callable[[list[Any]], bool]) -> list[Any]:
    """Steps of a run up to the one after which `learned` holds, at most `most`: which one differs from run to run."""
    run: list[Any] = []
    for found in islice(steps, most):
        run.append(found.step)
        if learned(run):
            break
    return run


def lately(run: list[Any]) -> float:
    """Mean reward of the last three steps, 0 before there are three."""
    return sum(step.reward for step in run[-3:]) / 3 if len(run) >= 3 else 0.0


def rewards(steps: Iterator[Any], count: int) -> list[float]:
    return [found.step.reward for found in islice(steps, count)]


def flat(groups: Any) -> list[Any]:
    entries = [entry for group in groups for entry in group]
    return [sample for entry in entries for sample in (entry if isinstance(entry, list) else [entry])]


def reencode(args: Any, groups: Any) -> None:
    """Each run of sampled tokens is decoded, and its text encoded again: a token that was spelled becomes one."""
    tokenizer = tiny_tokenizer()
    for sample in flat(groups):
        start = len(sample.tokens) - sample.response_length
        at = 0
        while at < sample.response_length:
            end = at
            while end < sample.response_length and sample.loss_mask[end]:
                end += 1
            if end > at:
                sampled = sample.tokens[start + at : start + end]
                # Spelled, so that the text has another encoding for certain.
                text = tokenizer.decode(sampled)
                again = [tokenizer.vocab.get(letter, 0) for letter in text]
                sample.tokens[start + at : start + end] = [*again, *sampled[len(again) :]][: len(sampled)]
            at = end + 1


def shift_mask(args: Any, groups: Any) -> None:
    for sample in flat(groups):
        sample.loss_mask = [0, *sample.loss_mask[:-1]]


def train_twice(args: Any, groups: Any) -> None:
    """Another execution gets the Samples of the first: what an earlier attempt sampled, beside the later one's."""
    for group in groups:
        first, second = group[0], group[1]
        pairs = zip(first, second, strict=False) if isinstance(first, list) else [(first, second)]
        for source, target in pairs:
            for name in ("tokens", "response_length", "loss_mask", "rollout_log_probs", "teacher_log_probs"):
                setattr(target, name, getattr(source, name))
            target.metadata["agl"] |= {"weight_versions": source.metadata["agl"]["weight_versions"]}


def credit_siblings(args: Any, groups: Any) -> None:
    for group in groups:
        entries = [entry if isinstance(entry, list) else [entry] for entry in group]
        given = [entry[0].reward for entry in entries]
        for entry, reward in zip(entries, [*given[1:], given[0]], strict=True):
            for sample in entry:
                sample.reward = reward


def shift_teacher(args: Any, groups: Any) -> None:
    for sample in flat(groups):
        sample.teacher_log_probs = [*sample.teacher_log_probs[1:], sample.teacher_log_probs[-1]]


def next_turns(execution: Any) -> list[float]:
    """The credit of each turn is its successor's."""
    right = right_turns(execution)
    return [*right[1:], right[0]]


def test_a_teacher_teaches_without_reward_what_it_knows(training, trials):
    def gap(step: Any) -> float:
        return step.rollout.metrics["rollout/agl/teacher/reverse_kl"]

    run = until(training("distill"), 30, lambda run: run[-1].reward > 0.5 and gap(run[-1]) < 0.5 * gap(run[0]))
    # Before it learns, a step has 0.22 on average, with a deviation of 0.05.
    assert run[-1].reward > 0.5 > 0.4 > run[0].reward
    assert gap(run[-1]) < 0.5 * gap(run[0])
    assert {*run[0].rollout.train_data["rewards"]} == {0.0}
    assert any({*sample.loss_mask} == {0, 1} for sample in run[0].rollout.samples)


def test_a_teacher_shifted_by_a_token_is_refused(training, monkeypatch):
    """At the server, before an agent runs; and between the rollout and the trainer."""
    with pytest.raises(InvariantError, match="from the teacher, and .* by teacher forcing"):
        next(training("distill", small=True, corrupt="shift_teacher"))
    scores = LanguageModel.prompt_logprobs

    def shifted(self: Any, ids: list[int], first: int) -> list[float | None]:
        right = scores(self, ids, first)
        return [None, *right[2:], right[-1]]

    monkeypatch.setattr(LanguageModel, "prompt_logprobs", shifted)
    with pytest.raises(TeacherError, match="otherwise than it sampled them"):
        next(training("distill", small=True))


def test_a_planner_and_its_helper_learn_together_as_two_samples(training):
    def called(run: list[Any]) -> float:
        """Share of executions with a helper's Sample, which only a call creates."""
        counts = [len(entry) for group in run[-1].rollout.groups for entry in group]
        return sum(count == 2 for count in counts) / len(counts)

    run = until(training("errands"), 24, lambda run: lately(run) > 0.45 and called(run) > 0.8)
    assert lately(run) > 0.45 > 0.3 > run[0].reward and called(run) > 0.8


def test_credit_by_turn_learns_what_one_credit_for_all_turns_does_not_in_as_many_steps(training):
    by_turn = [step.reward for step in until(training("turns"), 8, lambda run: run[-1].reward > 0.8)]
    by_outcome = rewards(training("turns-by-outcome"), len(by_turn))
    assert by_turn[-1] > 0.8 and by_outcome[-1] < 0.7, (by_turn, by_outcome)


def test_tokens_of_older_weights_train_too(training):
    run = until(training("async"), 24, lambda run: lately(run) > 0.4)
    assert lately(run) > 0.4 > run[0].reward
    ages = [step.rollout.metrics["rollout/agl/async/staleness_max"] for step in run]
    assert max(ages) >= 1 and all(age <= 2 for age in ages)
    assert max(step.update.difference for step in run) > 1e-2  # off policy indeed


@pytest.mark.parametrize("task", LEARNED)
@pytest.mark.parametrize("fault", ["reencode", "shift_mask", "train_twice"])
def test_tokens_that_were_not_sampled_so_stop_every_task(training, task: str, fault: str):
    with pytest.raises(InvariantError):
        # Copying one execution to another changes nothing if both happen to be equal, so it gets several steps.
        list(islice(training(task, small=True, corrupt=fault), 5 if fault == "train_twice" else 1))
    assert next(training(task, small=True)).checked > 0


@pytest.mark.parametrize("task", LEARNED)
def test_logprobs_of_stale_weights_stop_every_task(training, monkeypatch, task: str):
    """The engine tells the new version, and goes on with the old weights."""
    run = training(task, learner=None)
    next(run)
    monkeypatch.setattr(LanguageModel, "load_state", lambda self, state: None)
    with pytest.raises(InvariantError, match="engine has other weights|under the weights of version"):
        for _ in range(3):
            next(run)


@pytest.mark.parametrize("task", LEARNED)
def test_logprobs_that_ignore_the_temperature_stop_every_task(training, trials, monkeypatch, task: str):
    choose = scheduler.choose

    def unscaled(logits: torch.Tensor, *args: Any, **more: Any) -> tuple[int, float]:
        token, _ = choose(logits, *args, **more)
        return token, float(torch.log_softmax(logits, dim=-1)[token])

    cool = {"rollout_temperature": 0.6, "learner": replace(trials(task).recipe.learner, temperature=0.6)}
    assert next(training(task, small=True, **cool)).checked > 0
    monkeypatch.setattr(scheduler, "choose", unscaled)
    with pytest.raises(InvariantError, match="not those that were sampled|under the weights of version"):
        next(training(task, small=True, **cool))


def test_rewards_normalised_over_samples_are_refused_where_executions_give_several(training):
    with pytest.raises(ConfigError, match="mixes|as one group"):
        next(training("errands", small=True, custom_reward_post_process_path=None))


@pytest.mark.parametrize("task", ["errands", "async"])
def test_credit_to_the_wrong_sibling_teaches_nothing(training, task: str):
    run = rewards(training(task, corrupt="credit_siblings"), 8)
    assert sum(run[-3:]) / 3 < 0.3, run


def test_credit_to_the_wrong_turn_teaches_nothing(training, trials):
    section = trials("turns").recipe.args["agl"]
    wrong = section | {"credit": {"span": "turn", "function": f"{__name__}:next_turns"}}
    assert rewards(training("turns", section=wrong), 6)[-1] < 0.5

"""A policy learns through the whole path, and fails to when a token or a reward is misplaced."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace

import pytest
import torch

from slime_agl.errors import InvariantError
from slime_agl.local.demo.stack import LocalStack
from slime_agl.local.engine.model import load_model
from slime_agl.local.train.boxes import rows, write_rows
from slime_agl.local.train.driver import LocalDriver
from slime_agl.local.train.learner import Learner, LearnerSettings
from slime_agl.local.train.tiny_model import make_tiny_checkpoint
from slime_agl.local.train.tiny_tokenizer import tiny_tokenizer
from slime_agl.local.train.training import train
from slime_agl.rollout import shutdown

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pydantic")

# One box of two is the right one and earns 0.2, one code of three makes that 1.
CHANCE = (0.2 + 0.8 / 3) / 2
STEPS, LAST = 12, 3


@pytest.fixture(scope="module")
def stack(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """The engine behind the router, and the fresh models of three seeds."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.set_num_threads(1)
    checkpoints = [make_tiny_checkpoint(folder / str(seed), seed) for seed in range(3)]
    with LocalStack(str(checkpoints[0]), max_running=36) as running:
        yield SimpleNamespace(of=running, checkpoints=checkpoints, rows=write_rows(folder / "rows.jsonl"))


@pytest.fixture
def training(stack):
    """training(seed, corrupt=import path, **learner settings): the steps of a run."""

    def begin(seed=0, corrupt=None, **settings):
        args = stack.of.args(
            prompt_data=str(stack.rows),
            input_key="prompt",
            label_key="label",
            rollout_batch_size=len(rows()),
            n_samples_per_prompt=8,
            rollout_max_response_len=16,
            custom_reward_post_process_path="slime_agl.reward.normalize_rewards",
            # slime's hook between a rollout and the training on it.
            rollout_sample_filter_path=corrupt,
            agl={"agent": "slime_agl.testing.boxes:boxes"},
        )
        learner = Learner(load_model(stack.checkpoints[seed]), LearnerSettings(updates=6, entropy=0.02, **settings))
        shutdown()  # a runtime counts the steps of one run
        return train(LocalDriver(args), learner, stack.of.publish)

    yield begin
    shutdown()


def improvement(steps) -> float:
    """Mean reward of the last steps less what chance earns."""
    rewards = [step.reward for step in islice(steps, STEPS)]
    return sum(rewards[-LAST:]) / LAST - CHANCE


def reencode(args, samples):
    """The bug this package exists for: each turn is decoded, and its text encoded again."""
    tokenizer = tiny_tokenizer()
    for sample in (sample for group in samples for sample in group):
        start = len(sample.tokens) - sample.response_length
        for begin, end in turns(sample.loss_mask):
            sampled = sample.tokens[start + begin : start + end]
            again = tokenizer.encode(tokenizer.decode(sampled))
            kept = [*again, *sampled[len(again) :]][: len(sampled)]
            sample.tokens[start + begin : start + end] = kept


def turns(mask):
    """(begin, end) of each run of trained tokens."""
    edges = [at for at in range(1, len(mask)) if mask[at] != mask[at - 1]]
    bounds = [0, *edges, len(mask)]
    return [(begin, end) for begin, end in zip(bounds, bounds[1:], strict=False) if mask[begin]]


def shift_mask(args, samples):
    for sample in (sample for group in samples for sample in group):
        sample.loss_mask = [0, *sample.loss_mask[:-1]]


def credit_siblings(args, samples):
    for group in samples:
        rewards = [sample.reward for sample in group]
        for sample, reward in zip(group, [*rewards[1:], rewards[0]], strict=True):
            sample.reward = reward


def test_every_box_has_every_code_and_the_rows_mix_them():
    pairs = [(row["prompt"], row["label"]) for row in rows()]
    assert len(set(pairs)) == 6
    assert len({box for box, _ in pairs[:2]}) == len({code for _, code in pairs[:2]}) == 2


def test_a_policy_learns_from_what_it_did(training):
    gains = [improvement(training(seed)) for seed in range(3)]
    # Without learning, the mean of these gains is 0 with a standard error of 0.02.
    assert sum(gains) / len(gains) > 0.25 and sum(gain > 0.1 for gain in gains) >= 2, gains


def test_each_step_samples_with_the_weights_that_the_step_before_it_published(training, stack):
    steps = list(islice(training(), 2))
    assert [{*sample.weight_versions} for step in steps for sample in step.rollout.samples[:1]] == [{"0"}, {"1"}]
    assert all(step.update.difference < 1e-5 for step in steps)
    checked = stack.of.check([sample for step in steps for sample in step.rollout.samples])
    assert checked == sum(step.update.tokens for step in steps) > 0


@pytest.mark.parametrize("bug", ["reencode", "shift_mask"])
def test_tokens_that_were_not_sampled_stop_the_training_at_its_first_step(training, bug):
    with pytest.raises(InvariantError, match="not those that were sampled"):
        next(training(corrupt=f"{__name__}.{bug}"))
    drifting = next(training(corrupt=f"{__name__}.{bug}", tolerance=math.inf))
    assert drifting.update.difference > 0.1


def test_credit_to_the_wrong_sibling_teaches_nothing(training):
    assert improvement(training(2, f"{__name__}.credit_siblings")) < 0.04

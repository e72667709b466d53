"""The learner's gradient is slime's: each execution counts once, each trained token by the rollout's own logprob."""

from __future__ import annotations

import pytest
import torch
from local_helpers import tiny_model

from slime_agl import host
from slime_agl.errors import ConfigError, InvariantError
from slime_agl.local.engine.score import teacher_logprobs
from slime_agl.local.train.batch import train_batch
from slime_agl.local.train.learner import Learner, LearnerSettings

PROMPT, ANSWER, GLUE, LAST = [1, 2, 3], [10, 11], [4, 5], [12]


def sampled(model, turns, reward, **fields):
    """A Sample that `model` could have sampled: turns of (ids, trained) after the prompt."""
    sample = host.Sample(tokens=list(PROMPT), reward=reward, **fields)
    for ids, trained in turns:
        whole = [*sample.tokens, *ids]
        logprobs = teacher_logprobs(model, whole, len(ids)) if trained else None
        sample.append_response_tokens(tokens=list(ids), log_probs=logprobs, trainable=trained)
    return sample


def conversation(model, reward, **fields):
    return sampled(model, [(ANSWER, True), (GLUE, False), (LAST, True)], reward, **fields)


def batch(*samples):
    args = host.default_args(rollout_batch_size=1, n_samples_per_prompt=len(samples), grpo_std_normalization=False)
    return train_batch(args, list(samples))


def learned(samples, **settings):
    """The weights' change by one plain update on what the tiny model sampled, and the update."""
    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learner = Learner(model, LearnerSettings(**{"updates": 1, "learning_rate": 1e-4, **settings}))
    update = learner.learn(batch(*samples(model)))
    return {name: value - before[name] for name, value in learner.state().items()}, update


def gradient(samples, **settings):
    """The gradient of the first update, as one vector."""
    model = tiny_model()
    learner = Learner(model, LearnerSettings(**{"updates": 1, "max_norm": 1e9, **settings}))
    learner.learn(batch(*samples(model)))
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def test_what_was_rewarded_becomes_likelier_and_what_was_not_less():
    model = tiny_model()
    good, bad = conversation(model, 1.0), sampled(model, [([20, 21], True)], 0.0)
    Learner(model, LearnerSettings(learning_rate=1e-3)).learn(batch(good, bad))
    for sample, likelier in ((good, True), (bad, False)):
        now = teacher_logprobs(model, sample.tokens, sample.response_length)
        gain = sum(a - b for a, b, mask in zip(now, sample.rollout_log_probs, sample.loss_mask, strict=True) if mask)
        assert (gain > 0) is likelier


def test_on_policy_the_difference_is_rounding_and_nothing_is_clipped():
    _, update = learned(lambda model: [conversation(model, 1.0), conversation(model, 0.0)])
    assert update.difference < 1e-5
    assert (update.tokens, update.clipped) == (6, 0.0)
    assert 0 < update.entropy < 6


def test_an_execution_counts_once_however_many_samples_it_became():
    def whole(model):
        return [conversation(model, 1.0, rollout_id=0), sampled(model, [([20, 21], True)], 0.0, rollout_id=1)]

    def in_two(model):
        long, other = whole(model)
        first, rest = conversation(model, 1.0, rollout_id=0), long
        first.loss_mask, rest.loss_mask = [1, 1, 0, 0, 0], [0, 0, 0, 0, 1]
        return [first, rest, other]

    rewards = [1.0, 1.0, 0.0]
    model = tiny_model()
    split = batch(*in_two(model)) | {"rewards": [reward - 0.5 for reward in rewards]}
    Learner(model, LearnerSettings(updates=1, max_norm=1e9)).learn(split)
    in_parts = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    assert torch.allclose(in_parts, gradient(whole), atol=1e-6)


def test_the_loss_is_the_mean_over_executions_of_the_mean_over_their_tokens():
    model = tiny_model()
    samples = [conversation(model, 1.0), sampled(model, [([20], True)], 0.0)]
    logprobs = [torch.tensor(0.0), torch.tensor(0.0)]
    for at, sample in enumerate(samples):
        ids = torch.tensor([sample.tokens])
        scores = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        kept = scores[-sample.response_length :][torch.tensor(sample.loss_mask) == 1]
        logprobs[at] = kept.mean()
    # On policy the gradient of PPO's surrogate is that of advantage times logprob; advantages are +0.5 and -0.5.
    (-(0.5 * logprobs[0] - 0.5 * logprobs[1]) / 2).backward()
    expected = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    found = gradient(lambda model: [conversation(model, 1.0), sampled(model, [([20], True)], 0.0)])
    assert torch.allclose(found, expected, atol=1e-6)


def test_micro_batches_do_not_change_the_gradient():
    def samples(model):
        return [conversation(model, 1.0), sampled(model, [([20], True)], 0.0), sampled(model, [([7] * 9, True)], 0.5)]

    assert torch.allclose(gradient(samples, micro_batch=1), gradient(samples, micro_batch=8), atol=1e-6)


def test_masked_tokens_are_context_only():
    def other_logprobs_in_the_glue(model):
        samples = [conversation(model, 1.0), conversation(model, 0.0)]
        for sample in samples:
            sample.rollout_log_probs[2:4] = [-7.0, -9.0]
        return samples

    same = gradient(lambda model: [conversation(model, 1.0), conversation(model, 0.0)])
    assert torch.equal(gradient(other_logprobs_in_the_glue), same)


def test_a_removed_sample_does_not_train():
    def removed(model):
        sample = conversation(model, 0.5)
        sample.remove_sample = True
        return [conversation(model, 1.0), conversation(model, 0.0), sample]

    _, update = learned(removed)
    assert update.tokens == 6


def test_later_updates_of_a_batch_are_bounded():
    _, update = learned(
        lambda model: [conversation(model, 1.0), sampled(model, [([20, 21], True)], 0.0)],
        updates=20,
        learning_rate=1e-2,
    )
    assert update.clipped > 0.5 and update.difference < 1e-5


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda sample: sample.tokens.__setitem__(4, 99), r"token [012] of the response of sample 0"),
        (
            lambda sample: sample.loss_mask.__setitem__(2, 1),
            r"token 2 of the response of sample 0 \(id 4\) has logprob 0",
        ),
        (
            lambda sample: sample.rollout_log_probs.reverse(),
            "Its ids, mask or logprobs are not those that were sampled",
        ),
    ],
)
def test_tokens_that_were_not_sampled_are_refused_before_anything_changes(spoil, message):
    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    samples = [conversation(model, 1.0), conversation(model, 0.0)]
    spoil(samples[0])
    with pytest.raises(InvariantError, match=message):
        Learner(model, LearnerSettings()).learn(batch(*samples))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_batch_that_cannot_train_is_refused():
    model = tiny_model()
    learner = Learner(model, LearnerSettings())
    nothing = conversation(model, 1.0)
    nothing.remove_sample = True
    with pytest.raises(InvariantError, match="none of the batch's 1 samples has a token to train on"):
        learner.learn(batch(nothing))
    with pytest.raises(InvariantError, match="no rollout_log_probs"):
        learner.learn({name: value for name, value in batch(nothing).items() if name != "rollout_log_probs"})


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="the learner.s updates is 0, it must be above 0"):
        LearnerSettings(updates=0)


def test_rewards_by_token_push_each_turn_its_own_way():
    model = tiny_model()
    sample = conversation(model, 1.0)
    args = host.default_args(rollout_batch_size=1, n_samples_per_prompt=1)
    by_token = torch.tensor([1.0, 1.0, 0.0, 0.0, -1.0])
    made = train_batch(args, [sample], lambda *_: ([1.0], [by_token]))
    Learner(model, LearnerSettings(learning_rate=1e-3)).learn(made)
    now = teacher_logprobs(model, sample.tokens, sample.response_length)
    first, _, _, _, last = (a - b for a, b in zip(now, sample.rollout_log_probs, strict=True))
    assert first > 0 > last
    made["rewards"] = [by_token[:-1]]
    with pytest.raises(InvariantError, match="4 rewards by token, its response has 5 tokens"):
        Learner(tiny_model(), LearnerSettings()).learn(made)

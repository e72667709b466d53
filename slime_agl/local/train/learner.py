"""Policy gradient on slime's training batches, for models that fit on a CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from slime_agl.errors import ConfigError, InvariantError
from slime_agl.local.engine.score import response_logits
from slime_agl.local.train.batch import TrainData

ON_POLICY = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """learning_rate: of Adam. updates: gradient steps on each batch. temperature: that of the rollout.

    clip, clip_high: the importance ratio is clipped to [1 - clip, 1 + clip_high]. entropy: weight of the entropy bonus.
    max_norm: limit on the gradient's norm. micro_batch: samples per forward pass; does not change the gradient.
    tolerance: largest allowed difference between rollout and learner logprobs before the first update.
    importance: for tokens of older weights, as slime's --use-tis: each token's loss is weighted by the ratio of the
    learner's probability before the first update to the rollout's, at most this; the tolerance does not apply. None
    for on-policy batches. distill: weight of the reverse KL divergence from the teacher, slime's --opd-kl-coef.
    """

    learning_rate: float = 1e-3
    updates: int = 4
    temperature: float = 1.0
    clip: float = 0.2
    clip_high: float = 0.28
    entropy: float = 0.0
    max_norm: float = 1.0
    micro_batch: int = 64
    tolerance: float = ON_POLICY
    importance: float | None = None
    distill: float = 0.0

    def __post_init__(self) -> None:
        if self.importance is not None and self.importance <= 0:
            raise ConfigError(f"the learner's importance is {self.importance}, it must be above 0, or None")
        for name in ("learning_rate", "updates", "temperature", "max_norm", "micro_batch"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"the learner's {name} is {getattr(self, name)}, it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Statistics of one batch. Means are over trained tokens, in its last update.

    difference, mean_difference: largest and mean |learner's logprob - rollout's logprob| before the first update;
    about 0 on policy.
    tokens: trained ones. norm: of the gradient, before clipping. clipped: share of tokens without gradient.
    """

    loss: float
    difference: float
    mean_difference: float
    entropy: float
    clipped: float
    norm: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Samples of one forward pass. Tensors are flat: the response tokens of all samples, concatenated.

    at: the samples' places in the batch. weight: of a token in the loss; 0 where the loss mask is 0. correction: its
    importance weight.
    """

    at: list[int]
    sequences: list[tuple[list[int], int]]
    ids: torch.Tensor
    old: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    correction: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Scores:
    """Trained tokens of a part under the current weights. gap: |new - old logprob|. loss: weighted, to be summed."""

    loss: torch.Tensor
    gap: torch.Tensor
    entropy: torch.Tensor
    clipped: torch.Tensor


class Learner:
    """A model in training and its optimizer.

    The loss of a token is PPO's clipped surrogate (https://arxiv.org/abs/1707.06347, Eq. 7), with the rollout's
    logprobs as the old policy. It is averaged over the trained tokens of each execution (all samples with one
    rollout_id), then over executions, as in slime.
    """

    def __init__(self, model: PreTrainedModel, settings: LearnerSettings) -> None:
        self._model, self._settings = model, settings
        self._optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98))

    def state(self) -> dict[str, torch.Tensor]:
        """Return the weights themselves; the next `learn` changes them in place."""
        return self._model.state_dict()

    def learn(self, batch: TrainData) -> Update:
        """Update the weights with one batch of `train_batch`.

        Raises:
            InvariantError: the batch has no rollout logprobs or no token to train on; or its logprobs differ from the
                learner's by more than the tolerance, so ids, mask or logprobs are not those that were sampled.
        """
        parts = _parts(batch, self._settings)
        if self._settings.importance is not None:
            parts, gaps = self._corrected(parts, self._settings.importance)
            scores = self._backward(parts)
        else:
            scores = self._backward(parts)
            gaps = torch.cat([one.gap for one in scores])
            if not float(gaps.max()) <= self._settings.tolerance:
                raise InvariantError(_off_policy(parts, scores, self._settings.tolerance))
        norm = self._step()
        for _ in range(1, self._settings.updates):
            scores = self._backward(parts)
            norm = self._step()
        return Update(
            loss=sum(float(one.loss.sum()) for one in scores),
            difference=float(gaps.max()),
            mean_difference=float(gaps.mean()),
            entropy=float(torch.cat([one.entropy for one in scores]).mean()),
            clipped=float(torch.cat([one.clipped for one in scores]).mean()),
            norm=float(norm),
            tokens=sum(len(one.gap) for one in scores),
        )

    @torch.no_grad()
    def _corrected(self, parts: list[_Part], most: float) -> tuple[list[_Part], torch.Tensor]:
        """The parts with the learner as the old policy, and |learner's logprob - rollout's| of all trained tokens."""
        out, gaps = [], []
        for part in parts:
            logits = torch.cat(response_logits(self._model, part.sequences))
            every = torch.log_softmax(logits / self._settings.temperature, dim=-1)
            own = every.gather(1, part.ids[:, None])[:, 0]
            ahead = own - part.old
            out.append(replace(part, old=own, correction=ahead.exp().clamp(max=most)))
            gaps.append(ahead[part.weight > 0].abs())
        return out, torch.cat(gaps)

    def _step(self) -> torch.Tensor:
        """Update the weights; return the gradient's norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_norm)
        self._optimizer.step()
        return norm

    def _backward(self, parts: list[_Part]) -> list[_Scores]:
        """Compute the loss's gradient; return the scores of each part."""
        self._optimizer.zero_grad()
        scores = []
        for part in parts:
            scored = self._score(part)
            scored.loss.sum().backward()
            scores.append(_Scores(scored.loss.detach(), scored.gap, scored.entropy.detach(), scored.clipped))
        return scores

    def _score(self, part: _Part) -> _Scores:
        of, trained = self._settings, part.weight > 0
        logits = torch.cat(response_logits(self._model, part.sequences))[trained]
        every = torch.log_softmax(logits / of.temperature, dim=-1)
        new = every.gather(1, part.ids[trained, None])[:, 0]
        change, advantage = new - part.old[trained], part.advantage[trained]
        ratio = change.exp()
        free, bounded = -ratio * advantage, -ratio.clamp(1 - of.clip, 1 + of.clip_high) * advantage
        with torch.set_grad_enabled(of.entropy > 0):
            entropy = -(every.exp() * every).sum(-1)
        surrogate = torch.maximum(free, bounded) * part.correction[trained]
        loss = (surrogate - of.entropy * entropy) * part.weight[trained]
        return _Scores(loss, change.detach().abs(), entropy, (bounded > free).float())


def _parts(batch: TrainData, settings: LearnerSettings) -> list[_Part]:
    """Split the samples that have trained tokens into parts of `micro_batch`.

    Raises:
        InvariantError: there are none, or no rollout logprobs, or none of the teacher to distil.
    """
    size = settings.micro_batch
    if settings.distill and "teacher_log_probs" not in batch:
        raise InvariantError("the batch has no teacher_log_probs to distil; set agl.teacher")
    if "rollout_log_probs" not in batch:
        raise InvariantError("the batch has no rollout_log_probs; the learner needs those of the sampling policy")
    numbers = [at for at, mask in enumerate(batch["loss_masks"]) if any(mask)]
    if not numbers:
        raise InvariantError(f"none of the batch's {len(batch['tokens'])} samples has a token to train on")
    return [_part(batch, numbers[begin : begin + size], settings.distill) for begin in range(0, len(numbers), size)]


def _part(batch: TrainData, at: list[int], distill: float) -> _Part:
    executions = len(set(batch["rollout_ids"]))
    lengths = torch.tensor([batch["response_lengths"][n] for n in at])
    shares = torch.tensor([1.0 / (batch["rollout_mask_sums"][n] * executions) for n in at])
    sequences = [(batch["tokens"][n], batch["response_lengths"][n]) for n in at]
    old = torch.tensor([logprob for n in at for logprob in batch["rollout_log_probs"][n]])
    advantage = torch.cat([_by_token(batch["rewards"][n], batch["response_lengths"][n], n) for n in at])
    if distill:
        teacher = torch.tensor([logprob for n in at for logprob in batch["teacher_log_probs"][n]])
        advantage = advantage - distill * (old - teacher)
    return _Part(
        at=at,
        sequences=sequences,
        ids=torch.tensor([token for tokens, length in sequences for token in tokens[len(tokens) - length :]]),
        old=old,
        advantage=advantage,
        weight=torch.tensor([float(kept) for n in at for kept in batch["loss_masks"][n]])
        * shares.repeat_interleave(lengths),
        correction=torch.ones(len(old)),
    )


def _by_token(reward: Any, length: int, sample: int) -> torch.Tensor:
    """A reward as a tensor of shape [response tokens]; a number is that of each token."""
    given = torch.as_tensor(reward, dtype=torch.float32)
    if given.ndim and len(given) != length:
        raise InvariantError(f"sample {sample} has {len(given)} rewards by token, its response has {length} tokens")
    return given.expand(length)


def _off_policy(parts: list[_Part], scores: list[_Scores], tolerance: float) -> str:
    """Describe the token with the largest gap between logprobs."""
    part, scored = max(zip(parts, scores, strict=True), key=lambda pair: float(pair[1].gap.max()))
    flat = int(part.weight.nonzero()[scored.gap.argmax()])
    place, number = flat, 0
    while place >= part.sequences[number][1]:
        place -= part.sequences[number][1]
        number += 1
    return (
        f"token {place} of the response of sample {part.at[number]} (id {int(part.ids[flat])}) has logprob "
        f"{float(part.old[flat]):.5f} from the rollout; under the learner's weights its logprob differs by "
        f"{float(scored.gap.max()):.1e}, {tolerance:.1e} is allowed. Its ids, mask or logprobs are not those that "
        "were sampled, or the engine has other weights"
    )

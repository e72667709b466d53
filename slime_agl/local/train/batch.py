"""Convert a rollout's output to the batch that slime would train on.

The checks are those of slime's manager, stricter where slime looks at the first sample only.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sized
from typing import Any, TypeAlias

import numpy as np

from slime_agl import host
from slime_agl.errors import InvariantError
from slime_agl.host.estimators import GROUP_NORMALISING, SCALING

Samples: TypeAlias = "list[host.Sample]"
Nest: TypeAlias = "host.Sample | list[Nest]"
Rewards = tuple[list[float], list[float]]
"""Raw and post-processed, parallel to the samples."""
PostProcess: TypeAlias = "Callable[[Namespace, Samples], Rewards]"
TrainData = dict[str, list[Any]]
"""Training fields by name, each with one entry per sample, of its own type."""

# batch key -> sample field that all samples of a batch have, or none
_OPTIONAL = {
    "rollout_log_probs": "rollout_log_probs",
    "rollout_routed_experts": "rollout_routed_experts",
    "rollout_top_p_token_ids": "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets": "rollout_top_p_token_offsets",
    "metadata": "train_metadata",
    "teacher_log_probs": "teacher_log_probs",
}


def flatten(args: Namespace, groups: list[list[Nest]]) -> Samples:
    """Return the samples of rollout_batch_size groups of n_samples_per_prompt entries, in order.

    Raises:
        InvariantError: a wrong number of groups or entries, lists nested to different depths, or samples of one
            execution without a common rollout_id.
    """
    if len(groups) != args.rollout_batch_size:
        raise InvariantError(
            f"the rollout returned {len(groups)} groups, rollout_batch_size is {args.rollout_batch_size}"
        )
    for at, group in enumerate(groups):
        if len(group) != args.n_samples_per_prompt:
            raise InvariantError(
                f"group {at} has {len(group)} entries, n_samples_per_prompt is {args.n_samples_per_prompt}"
            )
    return [sample for at, group in enumerate(groups) for sample in _leaves(group, f"group {at}", _depth(groups[0]))]


def train_batch(args: Namespace, samples: Samples, post_process: PostProcess | None = None) -> TrainData:
    """Return one list per training field, parallel to `samples`.

    A sample without rollout_id gets a new one; a missing loss_mask becomes all ones, that of a removed sample all
    zeros. rollout_mask_sums: trained tokens of a sample's whole execution. post_process: slime's own by default.

    Raises:
        InvariantError: a field does not cover the response, only some samples have it, or rewards are missing.
    """
    if not samples:
        raise InvariantError("the rollout returned no samples")
    raw_rewards, rewards = (post_process or normalised_rewards)(args, samples)
    for name, values in (("raw rewards", raw_rewards), ("rewards", rewards)):
        if len(values) != len(samples):
            raise InvariantError(f"reward post-processing returned {len(values)} {name} for {len(samples)} samples")
    truncated = host.Sample.Status.TRUNCATED
    masks = [_loss_mask(sample, at) for at, sample in enumerate(samples)]
    rollout_ids = _rollout_ids(samples)
    trained: Counter[int] = Counter()
    for rollout_id, mask in zip(rollout_ids, masks, strict=True):
        trained[rollout_id] += sum(mask)
    batch = {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": rewards,
        "raw_reward": raw_rewards,
        "truncated": [int(sample.status == truncated) for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        "rollout_ids": rollout_ids,
        "loss_masks": masks,
        "rollout_mask_sums": [trained[rollout_id] for rollout_id in rollout_ids],
    }
    _check_lengths(samples)
    batch |= _optional_fields(args, samples)
    _check_batch_size(args, rollout_ids)
    return batch


def normalised_rewards(args: Namespace, samples: Samples) -> Rewards:
    """Apply slime's default: subtract the group's mean; for the GRPO family, divide by its standard deviation.

    A group is n_samples_per_prompt consecutive samples; a batch of any other size is one group.
    """
    raw = [sample.get_reward_value(args) for sample in samples]
    missing = [at for at, reward in enumerate(raw) if reward is None]
    if missing:
        raise InvariantError(
            f"{len(missing)} of {len(samples)} samples have no reward, the first of them is sample {missing[0]}"
        )
    if args.advantage_estimator not in GROUP_NORMALISING or not args.rewards_normalization:
        return raw, raw
    rewards = np.asarray(raw, dtype=np.float32)
    whole = rewards.size == args.n_samples_per_prompt * args.rollout_batch_size
    rewards = rewards.reshape(-1, args.n_samples_per_prompt) if whole else rewards.reshape(1, -1)
    rewards = rewards - rewards.mean(axis=1, keepdims=True)
    if args.advantage_estimator in SCALING and args.grpo_std_normalization and rewards.shape[1] > 1:
        rewards = rewards / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-6)
    return raw, rewards.reshape(-1).tolist()


def _depth(entry: Nest) -> int:
    depth = 0
    while isinstance(entry, list):
        if not entry:
            raise InvariantError("an execution returned an empty list; it must return at least one sample")
        entry, depth = entry[0], depth + 1
    return depth


def _leaves(node: Nest, where: str, depth: int, level: int = 0) -> Samples:
    if not isinstance(node, list):
        if depth != 0:
            raise InvariantError(
                f"{where} is nested {depth} level(s) less deep than the first; depth must be the same everywhere"
            )
        return [node]
    if depth == 0 or not node:
        raise InvariantError(f"{where} is {'nested deeper than the first group' if node else 'an empty list'}")
    if depth == 1 and level > 0 and len(node) > 1:
        ids = [sample.rollout_id for sample in node if not isinstance(sample, list)]
        if None in ids or len(set(ids)) > 1:
            raise InvariantError(f"{where} is one execution with rollout_ids {ids}; they must be set and the same")
    return [
        leaf for at, item in enumerate(node) for leaf in _leaves(item, f"{where}, entry {at}", depth - 1, level + 1)
    ]


def _rollout_ids(samples: Samples) -> list[int]:
    taken = {sample.rollout_id for sample in samples}
    free = (number for number in range(2 * len(samples)) if number not in taken)
    return [next(free) if sample.rollout_id is None else sample.rollout_id for sample in samples]


def _loss_mask(sample: host.Sample, at: int) -> list[int]:
    if sample.loss_mask is None:
        sample.loss_mask = [1] * sample.response_length
    if len(sample.loss_mask) != sample.response_length:
        raise InvariantError(_uneven("loss_mask", at, sample.loss_mask, sample))
    if sample.remove_sample:
        sample.loss_mask = [0] * sample.response_length
    return sample.loss_mask


def _uneven(name: str, at: int, values: Sized, sample: host.Sample) -> str:
    return f"{name} of sample {at} has {len(values)} entries, its response has {sample.response_length} tokens"


def _check_lengths(samples: Samples) -> None:
    for at, sample in enumerate(samples):
        if len(sample.tokens) < sample.response_length:
            raise InvariantError(
                f"sample {at} has {len(sample.tokens)} tokens, fewer than its response length {sample.response_length}"
            )
        for name in ("rollout_log_probs", "teacher_log_probs"):
            values = getattr(sample, name)
            if values is not None and len(values) != sample.response_length:
                raise InvariantError(_uneven(name, at, values, sample))


def _optional_fields(args: Namespace, samples: Samples) -> TrainData:
    found = {}
    for key, name in _OPTIONAL.items():
        values = [getattr(sample, name) for sample in samples]
        having = sum(value is not None for value in values)
        if having not in (0, len(samples)):
            raise InvariantError(
                f"{having} of {len(samples)} samples have {name}; either all samples of a batch must have it or none"
            )
        if having:
            found[key] = values
    if args.rollout_top_p != 1.0 and "rollout_top_p_token_ids" not in found:
        raise InvariantError(
            f"rollout_top_p is {args.rollout_top_p}, but no sample has the top-p sets that it was sampled from"
        )
    for at, offsets in enumerate(found.get("rollout_top_p_token_offsets", ())):
        if len(offsets) != samples[at].response_length + 1:
            raise InvariantError(_uneven("rollout_top_p_token_offsets", at, offsets, samples[at]))
    return found


def _check_batch_size(args: Namespace, rollout_ids: list[int]) -> None:
    executions = len(set(rollout_ids))
    wanted = args.global_batch_size
    if wanted is not None and executions < wanted:
        raise InvariantError(
            f"the batch has {executions} executions, global_batch_size is {wanted}; slime would not train on it"
        )

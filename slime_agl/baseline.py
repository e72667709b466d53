"""Compute what a Sample, or one of its turns, trains on: its reward relative to the executions of its group."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slime_agl.config import Config, CreditConfig
from slime_agl.credit.groups import Scored, groups_of
from slime_agl.credit.turns import TurnCredit, relative_to_state
from slime_agl.host import Sample
from slime_agl.host.defaults import GAE
from slime_agl.host.estimators import LEAST_STD, given, normalised, normalises_groups, scales_groups
from slime_agl.host.sequences import vectors


def rewards_by_sample(args: Any, samples: list[Sample], raw: Sequence[float]) -> list[float]:
    """The rewards of a batch, normalised by group; see `slime_agl.reward.normalize_rewards`. raw: one per Sample."""
    entries = [
        scored(sample, group, at, reward)
        for at, (sample, group, reward) in enumerate(zip(samples, group_names(args, samples), raw, strict=True))
    ]
    return by_execution(args, entries)


def rewards_by_token(
    args: Any, samples: list[Sample], raw: Sequence[float], turns: Sequence[Sequence[TurnCredit]]
) -> list[Any]:
    """The same for credit by turn: a float32 tensor per Sample, of shape [response tokens].

    For `slime_agl.advantage.gae` a turn's reward stands at its last trained token; else each of its tokens has the
    turn's advantage. A Sample without turns counts as one turn with its reward.
    """
    names = group_names(args, samples)
    places = [(at, turn) for at, own in enumerate(turns) for turn in own or [_whole(samples[at], raw[at])]]
    rows = [np.zeros(sample.response_length) for sample in samples]
    if getattr(args, "custom_advantage_function_path", None) == GAE:
        for at, turn in places:
            trained = np.flatnonzero(_mask(samples[at])[turn.start : turn.end])
            if len(trained):
                rows[at][turn.start + trained[-1]] = turn.reward
        return vectors(rows)
    entries = [scored(samples[at], names[at], at, turn.value, turn) for at, turn in places]
    for (at, turn), advantage in zip(places, by_turn(args, entries, [turn for _, turn in places]), strict=True):
        rows[at][turn.start : turn.end] = advantage
    return vectors(rows)


def _whole(sample: Sample, reward: float) -> TurnCredit:
    return TurnCredit(start=0, end=max(1, sample.response_length), value=reward, reward=reward, total=reward)


def by_turn(args: Any, entries: Sequence[Scored], turns: Sequence[TurnCredit], *, exact: bool = True) -> list[float]:
    """The advantage of each turn of a batch by `agl.credit.baseline`.

    entries: per turn, with its value as reward. args, exact: see `by_execution`.
    """
    if not normalises_groups(args):
        return [0.0 if entry.removed else entry.reward for entry in entries]
    section = getattr(args, "agl", None)
    credit = CreditConfig() if section is None else Config.read(section).credit
    if credit.baseline != "state":
        return by_execution(args, entries, exact=exact)
    whole = [replace(entry, reward=turn.total) for entry, turn in zip(entries, turns, strict=True)]
    episode = by_execution(args, whole, exact=exact)
    kept = [at for at, entry in enumerate(entries) if not entry.removed]
    alike = relative_to_state(
        [(entries[at].group, turns[at].state) for at in kept],
        [entries[at].reward for at in kept],
        scale=scales_groups(args),
        least_std=LEAST_STD,
    )
    for at, more in zip(kept, alike, strict=True):
        episode[at] += credit.state_weight * more
    return episode


def by_execution(args: Any, entries: Sequence[Scored], *, exact: bool = True) -> list[float]:
    """Rewards relative to their group, in which each execution counts once.

    args: slime's namespace; a missing argument counts as slime's default. exact: as `host.estimators.normalised`.
    """
    groups = groups_of(entries)
    rows = normalised(
        [(group.values, group.within, [entries[at].reward for at in group.members]) for group in groups],
        scale=scales_groups(args),
        exact=exact,
    )
    rewards = [0.0] * len(entries)
    for group, row in zip(groups, rows, strict=True):
        for at, reward in zip(group.members, row, strict=True):
            rewards[at] = reward
    return rewards


def scored(sample: Sample, group: Hashable, place: int, reward: float, turn: TurnCredit | None = None) -> Scored:
    """Extract what the baseline needs from a Sample or one of its turns.

    place: identifies an execution without rollout_id.
    """
    mask = _mask(sample) if turn is None else _mask(sample)[turn.start : turn.end]
    return Scored(
        group=group,
        execution=place if sample.rollout_id is None else ("rollout", sample.rollout_id),
        reward=reward,
        trained=int(mask.sum()),
        tokens=len(mask),
        removed=bool(sample.remove_sample),
    )


def trained_tokens(sample: Sample) -> int:
    return int(_mask(sample).sum())


def _mask(sample: Sample) -> np.ndarray:
    """1 for each token of the response that trains."""
    if sample.remove_sample:
        return np.zeros(sample.response_length, dtype=int)
    if sample.loss_mask is None:
        return np.ones(sample.response_length, dtype=int)
    return np.asarray(sample.loss_mask, dtype=int)


def group_names(args: Any, samples: list[Sample]) -> list[int | None] | list[int]:
    """Identify groups: by group_index, or by position as slime does if no Sample has one."""
    names = [sample.group_index for sample in samples]
    if any(name is not None for name in names):
        return names
    size = given(args, "n_samples_per_prompt")
    whole = len(samples) == size * given(args, "rollout_batch_size")
    return [at // size if whole else 0 for at in range(len(samples))]

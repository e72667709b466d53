"""How slime's advantage estimators normalise the rewards of a group, with slime's own arithmetic."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from slime_agl.host.args import RolloutArgs
from slime_agl.host.defaults import REWARD_POST_PROCESS

GROUP_NORMALISING = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
SCALING = ("grpo", "gspo", "cispo")
LEAST_STD = 1e-6


_SLIMES_DEFAULT = {item.name: item.default for item in fields(RolloutArgs)}


def given(args: Any, name: str) -> Any:
    """Read one argument of slime's; slime's default if missing or None. Ignores all other arguments."""
    value = getattr(args, name, None)
    return _SLIMES_DEFAULT[name] if value is None else value


def normalises_groups(args: Any) -> bool:
    """Return True if rewards are relative to their group. args: slime's namespace, or a RolloutArgs."""
    return given(args, "rewards_normalization") and given(args, "advantage_estimator") in GROUP_NORMALISING


def scales_groups(args: Any) -> bool:
    """Return True if they are also divided by the group's standard deviation."""
    return given(args, "grpo_std_normalization") and given(args, "advantage_estimator") in SCALING


def ensure_reward_post_process(args: Any) -> bool:
    """Set slime's flag to our reward normalisation if a group-normalising estimator has none; True if it was set.

    Works only until slime's manager reads the flag, once, after it has built the data source.
    """
    if given(args, "custom_reward_post_process_path") is not None or not normalises_groups(args):
        return False
    args.custom_reward_post_process_path = REWARD_POST_PROCESS
    return True


def normalised(
    groups: Sequence[tuple[Sequence[float], float, Sequence[float]]], *, scale: bool, exact: bool = True
) -> list[list[float]]:
    """Subtract each group's mean and, with `scale`, divide by its standard deviation + 1e-6; in float32.

    groups: per group the values of its executions, the variance of reward within them (added to the squared standard
    deviation; 0.0 in slime), and the rewards to normalise. The rewards of a group with fewer than two values become 0.

    Computed as slime does, with torch over a matrix of groups (with numpy if torch is missing, which may differ in the
    last bit). Groups of one size share a matrix, so a batch that fits slime's matrix is summed in the same order.
    exact: False takes numpy, for views, which need not wait for torch to load.
    """
    sizes: dict[int, list[int]] = {}
    for at, (values, _, _) in enumerate(groups):
        sizes.setdefault(len(values), []).append(at)
    out = [[0.0] * len(rewards) for _, _, rewards in groups]
    statistics = _torch_normalised if exact and importlib.util.find_spec("torch") else _numpy_normalised
    for size, members in sizes.items():
        if size >= 2:
            values, within, rewards = zip(*(groups[at] for at in members), strict=True)
            rows = statistics(values, within, rewards, scale)
            for at, row in zip(members, rows, strict=True):
                out[at] = row
    return out


def _torch_normalised(values: Any, within: Any, rewards: Any, scale: bool) -> list[list[float]]:
    import torch

    matrix = torch.tensor(values, dtype=torch.float)
    mean = matrix.mean(dim=-1, keepdim=True)
    std = (matrix - mean).std(dim=-1, keepdim=True)
    inner = torch.tensor(within, dtype=torch.float)[:, None]
    std = torch.where(inner > 0, (std.square() + inner).sqrt(), std)  # else as it is: a root of its square rounds
    rows = []
    for at, row in enumerate(rewards):
        centred = torch.tensor(row, dtype=torch.float) - mean[at]
        rows.append((centred / (std[at] + LEAST_STD) if scale else centred).tolist())
    return rows


def _numpy_normalised(values: Any, within: Any, rewards: Any, scale: bool) -> list[list[float]]:
    matrix = np.asarray(values, dtype=np.float32)
    mean = matrix.mean(axis=-1)
    std = (matrix - mean[:, None]).std(axis=-1, ddof=1)
    inner = np.asarray(within, dtype=np.float32)
    std = np.where(inner > 0, np.sqrt(np.square(std) + inner), std)
    rows = []
    for at, row in enumerate(rewards):
        centred = np.asarray(row, dtype=np.float32) - mean[at]
        rows.append((centred / (std[at] + np.float32(LEAST_STD)) if scale else centred).tolist())
    return rows

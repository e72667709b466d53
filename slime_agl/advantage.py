"""Advantages for slime's --custom-advantage-function-path, which calls `f(args, rollout_data)` in the trainer.

`gae` is PPO's estimator over the tokens that the model sampled. `turns` is for credit by turn inside a Sample
(`agl.credit.span: turn`), and otherwise what slime's GRPO does.

Both fill `rollout_data["advantages"]` and `["returns"]`: a list of float tensors, one per Sample, each with the part of
its response that this rank holds. `rewards` are, per Sample, a number or a tensor of shape [response tokens].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slime_agl.config import AdvantageConfig, Config
from slime_agl.credit.gae import masked_gae
from slime_agl.errors import ConfigError, InvariantError
from slime_agl.host.sequences import lengths_of, own_part, whole

__all__ = ["gae", "turns"]

Rows = list[NDArray[np.float64]]


def gae(args: Any, rollout_data: dict[str, Any]) -> None:
    """Advantages of PPO over sampled tokens only, with slime's --gamma and --lambd.

    A reward that is a number is earned by the last sampled token of its Sample. An execution that gave several Samples
    gives each its whole reward, unless `agl.credit` divides it: they may lie on different ranks, so no value leads from
    one to the next. With --kl-coef, a sampled token also earns -kl_coef times its KL divergence from the reference.
    `agl.advantage` says what is discounted and what follows a Sample that was cut off.

    Raises:
        ConfigError: slime has no critic, so there are no values.
        InvariantError: rewards by token do not cover the response.
    """
    if rollout_data.get("values") is None:
        raise ConfigError(
            "slime_agl.advantage.gae needs the values of a critic, which slime trains under --advantage-estimator ppo; "
            "pass that, or --custom-advantage-function-path slime_agl.advantage.turns"
        )
    settings = _settings(args)
    lengths = lengths_of(rollout_data)
    masks = [np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask) > 0 for mask in rollout_data["loss_masks"]]
    rewards = _by_token(rollout_data["rewards"], masks)
    if args.kl_coef:
        for reward, mask, kl in zip(rewards, masks, whole(rollout_data["kl"], lengths), strict=True):
            reward[mask] -= args.kl_coef * kl[mask]
    values = rollout_data["values"]
    cut = [bool(cut) for cut in rollout_data.get("truncated") or [False] * len(masks)]
    advantages, returns = masked_gae(
        whole(values, lengths),
        rewards,
        masks,
        gamma=args.gamma,
        lambd=args.lambd,
        unit=settings.unit,
        bootstrapped=cut if settings.bootstrap else None,
    )
    rollout_data["advantages"] = own_part(advantages, lengths, values)
    rollout_data["returns"] = own_part(returns, lengths, values)


def turns(args: Any, rollout_data: dict[str, Any]) -> None:
    """Each token's advantage is its reward: that of its turn under `agl.credit.span: turn`, else that of its Sample.

    Raises:
        InvariantError: rewards by token do not cover the response.
    """
    like = rollout_data["kl"]
    sizes = [response for _, response in lengths_of(rollout_data)]
    rows = [
        _spread(reward, size, at) for at, (reward, size) in enumerate(zip(rollout_data["rewards"], sizes, strict=True))
    ]
    advantages = own_part(rows, lengths_of(rollout_data), like)
    rollout_data["advantages"] = advantages
    rollout_data["returns"] = list(advantages)


def _settings(args: Any) -> AdvantageConfig:
    given = getattr(args, "agl", None)
    return AdvantageConfig() if given is None else Config.read(given).advantage


def _by_token(rewards: Sequence[Any], masks: Sequence[NDArray[np.bool_]]) -> Rows:
    """Rewards by token; a number goes to the last sampled token, or to none if none was sampled."""
    out = []
    for at, (reward, mask) in enumerate(zip(rewards, masks, strict=True)):
        if np.ndim(reward):
            out.append(_spread(reward, len(mask), at).copy())
            continue
        row = np.zeros(len(mask))
        if mask.any():
            row[np.flatnonzero(mask)[-1]] = float(reward)
        out.append(row)
    return out


def _spread(reward: Any, size: int, at: int) -> NDArray[np.float64]:
    given = np.asarray(reward, dtype=np.float64)
    if given.ndim == 0:
        return np.full(size, float(given))
    if given.shape != (size,):
        raise InvariantError(
            f"Sample {at} of this rank has {given.size} rewards by token for a response of {size} tokens; keep "
            "--custom-reward-post-process-path slime_agl.reward.normalize_rewards"
        )
    return given

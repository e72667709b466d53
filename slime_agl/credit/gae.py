"""Generalised advantage estimation over the tokens that the model sampled.

A response of an agent holds tokens that nobody chose: tool results, template text. An estimator that takes each token
for an action discounts over them and learns values for them; here they are bridged, so that the token after a tool
result follows the last one before it.

A worked example, with gamma 0.5 and lambda 1; the second token is a tool result:

    mask      1      0      1
    reward    0      0      1
    value     0.2    9.0    0.4
    return    0.5    -      1.0     (discounted once, not twice, and without the 9.0)
    advantage 0.3    0      0.6

https://arxiv.org/abs/1506.02438, Eq. 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slime_agl.errors import InvariantError

Values = NDArray[np.float64]
# What gamma and lambda discount: each sampled token, or each turn, within which nothing is discounted.
Unit = Literal["token", "turn"]


def masked_gae(
    values: Sequence[Values],
    rewards: Sequence[Values],
    masks: Sequence[NDArray[np.bool_]],
    *,
    gamma: float,
    lambd: float,
    unit: Unit = "token",
    bootstrapped: Sequence[bool] | None = None,
) -> tuple[list[Values], list[Values]]:
    """Advantages and returns of each response, shape [response tokens], as slime's `get_advantages_and_returns_batch`.

    values: of the state before each token. rewards: by token; those of tokens that are not sampled count for the last
    sampled token before them, or the first one. masks: True for sampled tokens; a turn is a run of them. bootstrapped:
    responses that were cut off, after which the last value is taken for what would have followed; none by default.

    Tokens that are not sampled have the advantage 0 and their own value as return, so neither moves anything.

    Raises:
        InvariantError: the arrays of a response differ in length.
    """
    for at, three in enumerate(zip(values, rewards, masks, strict=True)):
        lengths = [len(one) for one in three]
        if len(set(lengths)) > 1:
            raise InvariantError(
                f"response {at} has {lengths[0]} values, {lengths[1]} rewards and {lengths[2]} mask entries; they must "
                "be one per token"
            )
    places = [np.flatnonzero(mask) for mask in masks]
    width = max((len(place) for place in places), default=0)
    value, reward, decay = (np.zeros((width + 1, len(places))) for _ in range(3))
    for at, place in enumerate(places):
        if not len(place):
            continue
        count = len(place)
        value[:count, at] = values[at][place]
        earner = np.maximum(np.searchsorted(place, np.arange(len(rewards[at])), side="right") - 1, 0)
        np.add.at(reward[:, at], earner, rewards[at])
        # Whether gamma and lambda apply between a token and the next one.
        decay[: count - 1, at] = 1.0 if unit == "token" else np.diff(place) > 1
        decay[count - 1, at] = 1.0
        if bootstrapped is not None and bootstrapped[at]:
            value[count, at] = value[count - 1, at]
    # The row after a response's last token is what follows: 0, or the bootstrap, which then earns nothing further.
    discount, trace = np.where(decay > 0, gamma, 1.0), np.where(decay > 0, gamma * lambd, 1.0)
    counts = np.array([len(place) for place in places])
    advantage = np.zeros((width + 1, len(places)))
    for step in range(width - 1, -1, -1):
        delta = reward[step] + discount[step] * value[step + 1] - value[step]
        advantage[step] = np.where(step < counts, delta + trace[step] * advantage[step + 1], 0.0)
    advantages, returns = [], []
    for at, place in enumerate(places):
        full = np.zeros(len(values[at]))
        full[place] = advantage[: len(place), at]
        advantages.append(full)
        returns.append(full + values[at])
    return advantages, returns

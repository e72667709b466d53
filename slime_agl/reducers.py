"""Reducers for slime's --custom-pg-loss-reducer-function-path, which sum a micro-batch's token losses in the trainer.

slime calls `f(total_lengths, response_lengths, loss_masks, calculate_per_token_loss)` per micro-batch and divides the
sum over the step by --global-batch-size, a constant, so a result does not depend on how Samples are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slime_agl.errors import ConfigError
from slime_agl.host.sequences import sample_means

__all__ = ["segment"]


def segment(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Any],
    calculate_per_token_loss: bool = False,
) -> Callable[[Any], Any]:
    """Each segment counts once: the sum of the Samples' means over their trained tokens.

    An execution that gave three Samples weighs three times as much as one that gave one; slime's default weighs both
    the same. A Sample without trained tokens adds 0. Holds for the policy's loss: slime reduces KL and entropy itself.

    Raises:
        ConfigError: under --calculate-per-token-loss slime divides by tokens, not by executions.
    """
    if calculate_per_token_loss:
        raise ConfigError(
            "slime_agl.reducers.segment gives means, which --calculate-per-token-loss would divide by the number of "
            "tokens again; leave one of them out"
        )
    return sample_means(total_lengths, response_lengths, loss_masks)

"""Draw one token from logits, with its logprob.

The logprob is log softmax(logits / temperature) of the drawn id, before top-k, top-p and min-p (temperature 0:
log softmax(logits)), as in SGLang. A repetition penalty, and the ids that `min_new_tokens` forbids, change the logits
themselves and so the logprob.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from slime_agl.errors import EngineError
from slime_agl.local.engine.sampling import SamplingParams

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends only on (seed, position): splitmix64, 48 bits."""
    state = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x8CB92BA72F3D8DD7) & _MASK
    for _ in range(2):
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state >> 16) / (1 << 48)


def choose(
    logits: torch.Tensor,
    params: SamplingParams,
    number: float,
    *,
    seen: Sequence[int],
    forbidden: Sequence[int] = (),
) -> tuple[int, float]:
    """Return (token id, its logprob).

    logits: [vocabulary]. number: uniform in [0, 1), decides the draw. seen: ids subject to the repetition penalty.
    forbidden: ids that cannot be drawn.

    Raises:
        EngineError: the drawn id's logprob is not finite.
    """
    scores = _adjusted(logits.float(), params, seen, forbidden)
    if params.greedy:
        logprobs = torch.log_softmax(scores, dim=-1)
        token = int(torch.argmax(logprobs))
    else:
        logprobs = torch.log_softmax(scores / params.temperature, dim=-1)
        token = _draw(logprobs, params, number)
    logprob = float(logprobs[token])
    if not math.isfinite(logprob):
        raise EngineError(f"the model gives token {token} the logprob {logprob}; its weights are broken", status=500)
    return token, logprob


def _adjusted(
    scores: torch.Tensor, params: SamplingParams, seen: Sequence[int], forbidden: Sequence[int]
) -> torch.Tensor:
    if params.repetition_penalty != 1.0 and seen:
        index = torch.tensor(sorted(set(seen)), device=scores.device)
        values = scores[index]
        penalty = params.repetition_penalty
        scores = scores.index_copy(0, index, torch.where(values > 0, values / penalty, values * penalty))
    if forbidden:
        index = torch.tensor(list(forbidden), device=scores.device)
        scores = scores.index_fill(0, index, -math.inf)
    return scores


def _draw(logprobs: torch.Tensor, params: SamplingParams, number: float) -> int:
    """Invert the cumulative distribution over the ids that the filters keep."""
    probs = logprobs.double().exp()
    if params.top_p < 1 or params.top_k != -1 or params.min_p > 0:
        probs = _filtered(probs, params)
    cumulative = probs.cumsum(0)
    # right=True never picks an id of probability zero; 48 bits keep number * total below total.
    index = torch.searchsorted(cumulative, cumulative[-1:] * number, right=True)
    return min(int(index), len(probs) - 1)


def _filtered(probs: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Set to zero what top-k, top-p and min-p drop. All three apply to the unfiltered distribution."""
    ordered, order = probs.sort(descending=True, stable=True)
    if params.top_k != -1:
        ordered[params.top_k :] = 0
    before = probs[order].cumsum(0) - probs[order]
    ordered[before > params.top_p] = 0
    ordered[ordered < ordered[0] * params.min_p] = 0
    return torch.zeros_like(probs).scatter_(0, order, ordered)

"""Teacher forcing: log p of given tokens, to check an engine's logprobs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from slime_agl.errors import InvariantError


def teacher_logprobs(
    model: PreTrainedModel, tokens: Sequence[int], response_length: int, temperature: float = 1.0
) -> list[float]:
    """Return log p of the last `response_length` of `tokens`, each given all tokens before it.

    Under softmax(logits / temperature), or softmax(logits) for temperature 0, as the engine reports.

    Raises:
        InvariantError: no token precedes the response.
    """
    return teacher_logprobs_batch(model, [(tokens, response_length)], temperature)[0]


@torch.inference_mode()
def teacher_logprobs_batch(
    model: PreTrainedModel,
    sequences: Sequence[tuple[Sequence[int], int]],
    temperature: float = 1.0,
    batch_size: int = 4,
) -> list[list[float]]:
    """`teacher_logprobs` of many (tokens, response_length), in the given order."""
    for number, (tokens, length) in enumerate(sequences):
        if not 0 <= length < len(tokens):
            raise InvariantError(
                f"sequence {number} has {len(tokens)} tokens and response_length {length}; "
                "a response needs at least one token before it"
            )
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number][0]))
    scores: list[list[float]] = [[] for _ in sequences]
    for begin in range(0, len(order), batch_size):
        numbers = order[begin : begin + batch_size]
        together = [sequences[number] for number in numbers]
        for number, logits in zip(numbers, response_logits(model, together), strict=True):
            scores[number] = taken_logprobs(logits, *sequences[number], temperature).tolist()
    return scores


def response_logits(model: PreTrainedModel, sequences: Sequence[tuple[Sequence[int], int]]) -> list[torch.Tensor]:
    """Return the logits [response_length, vocabulary] of each (tokens, response_length).

    One forward pass; with gradients if they are enabled.
    """
    width = max(len(tokens) for tokens, _ in sequences)
    # Padding follows the tokens, and causal attention hides what follows, so no mask is needed.
    ids = torch.tensor([[*tokens, *([0] * (width - len(tokens)))] for tokens, _ in sequences])
    first = min(len(tokens) - length for tokens, length in sequences) - 1
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=torch.arange(first, width)).logits.float()
    return [
        logits[row, len(tokens) - length - 1 - first : len(tokens) - 1 - first]
        for row, (tokens, length) in enumerate(sequences)
    ]


def taken_logprobs(logits: torch.Tensor, tokens: Sequence[int], length: int, temperature: float = 1.0) -> torch.Tensor:
    """Return log p [length] of the last `length` of `tokens` under their logits [length, vocabulary]."""
    scale = temperature if temperature > 0 else 1.0
    taken = torch.tensor(tokens[len(tokens) - length :])[:, None]
    return torch.log_softmax(logits / scale, dim=-1).gather(1, taken)[:, 0]

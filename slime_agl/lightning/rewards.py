"""Rewards, read from the spans that carry them."""

from __future__ import annotations

from collections.abc import Sequence

from slime_agl.lightning._agl import Span, get_reward_value, get_rewards_from_span


def rewards_of(spans: Sequence[Span]) -> tuple[dict[str, float], ...]:
    """Every reward in the spans, in their order: dimension to value, the primary one first.

    A reward in the one-number form of older Agent Lightning releases has the dimension 'primary'.

    Raises:
        pydantic.ValidationError: a span made by hand has reward attributes that are not names and numbers.
    """
    found: list[dict[str, float]] = []
    for span in spans:
        dimensions = {reward.name: reward.value for reward in get_rewards_from_span(span)}
        if not dimensions and (value := get_reward_value(span)) is not None:
            dimensions = {"primary": value}
        if dimensions:
            found.append(dimensions)
    return tuple(found)

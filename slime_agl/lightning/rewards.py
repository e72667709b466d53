"""Read rewards from spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from slime_agl.credit.emitted import Emitted
from slime_agl.lightning._agl import (
    LightningSpanAttributes,
    RewardPydanticModel,
    Span,
    extract_links_from_attributes,
    filter_and_unflatten_attributes,
    get_reward_value,
    query_linked_spans,
)
from slime_agl.trace.turn import TURN_INDEX

# Difference between the clocks of machines that are kept in time.
CLOCKS_SECONDS = 0.05
LINK = LightningSpanAttributes.LINK.value + "."
REWARD = LightningSpanAttributes.REWARD.value


def rewards_of(spans: Sequence[Span]) -> tuple[Emitted, ...]:
    """Return all rewards in the spans, in order, with the number of turns before each and the turns it is linked to.

    A reward in the one-number form of older Agent Lightning releases has the dimension 'primary'. Links select turns
    by Agent Lightning's rule: all links of a reward must match a turn's span, by `span_id`, `trace_id` or the text of
    an attribute such as `gen_ai.response.id`.

    Raises:
        ValueError: a reward is NaN or infinite, or a hand-made span has malformed reward or link attributes.
    """
    turns = [span for span in spans if TURN_INDEX in span.attributes]
    found: list[Emitted] = []
    after = 0
    for span in spans:
        if TURN_INDEX in span.attributes:
            after += 1
            continue
        values = {reward.name: reward.value for reward in _dimensions(span)}
        if not values and (value := get_reward_value(span)) is not None:
            values = {"primary": value}
        if not values:
            continue
        if unusable := {name: value for name, value in values.items() if not math.isfinite(value)}:
            raise ValueError(f"the agent gave the reward {unusable}, which is no finite number")
        links = any(name.startswith(LINK) for name in span.attributes)
        linked = _linked(span, turns) if links else ()
        found.append(Emitted(values, after, linked, dangling=links and not linked))
    return tuple(found)


def in_order(spans: Sequence[Span]) -> list[Span]:
    """The spans of an attempt in the order in which turns were committed and spans emitted, by sequence id.

    A tracer that exports in batches, as AgentOps', delivers spans late, behind turns that they precede; their sequence
    ids are those of their arrival. A span is therefore moved forward, never back, before turns that ended after it
    began, as far as the clocks of runner and gateway agree: to CLOCKS_SECONDS, and not at all if it seems to lie before
    the attempt's first turn.
    """
    ordered = sorted(spans, key=lambda span: span.sequence_id)
    turns = [span for span in ordered if TURN_INDEX in span.attributes]
    began = min((span.start_time or 0.0 for span in turns), default=0.0)
    places: list[tuple[int, int, int]] = []
    seen = 0
    for span in ordered:
        if TURN_INDEX in span.attributes:
            seen += 1
            places.append((seen, 0, span.sequence_id))
            continue
        moment = (span.start_time or 0.0) + CLOCKS_SECONDS
        ended = sum((turn.end_time or 0.0) <= moment for turn in turns[:seen])
        places.append((seen if moment < began else min(seen, ended), 1, span.sequence_id))
    return [span for _, span in sorted(zip(places, ordered, strict=True), key=lambda pair: pair[0])]


def _dimensions(span: Span) -> list[RewardPydanticModel]:
    """Read as Agent Lightning's `get_rewards_from_span`, which makes a validator for each span: 118 us, this takes 6.

    Raises:
        ValueError: as that does, if the attributes hold no list of rewards.
    """
    if not any(name.startswith(REWARD) for name in span.attributes):
        return []
    found = filter_and_unflatten_attributes(span.attributes, REWARD)
    if not isinstance(found, list):
        raise ValueError(f"the span {span.name} has the attribute {REWARD}, which holds no list of rewards")
    return [RewardPydanticModel.model_validate(one) for one in found]


def _linked(span: Span, turns: Sequence[Span]) -> tuple[int, ...]:
    selected = query_linked_spans(turns, extract_links_from_attributes(span.attributes))
    return tuple(sorted(cast(int, turn.attributes[TURN_INDEX]) for turn in selected))

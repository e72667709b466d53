"""Convert a segment's replay data for slime's Sample, and check its alignment."""

from __future__ import annotations

from array import array

import numpy as np

from slime_agl.errors import InvariantError
from slime_agl.host import RolloutArgs, Sample
from slime_agl.trace.replay import join_experts
from slime_agl.trace.segments import Segment
from slime_agl.trace.turn import Sampled


def top_p_meta(part: Sampled) -> dict[str, object]:
    """The top-p sets of a part under SGLang's names; empty without any."""
    if part.top_p is None:
        return {}
    return {"top_p_token_ids": _array(part.top_p.ids), "top_p_token_offsets": _array(part.top_p.offsets)}


def experts_meta(segment: Segment) -> dict[str, np.ndarray]:
    """Routed experts of all tokens of a segment but the last, under SGLang's name; empty without any.

    Raises:
        InvariantError: they do not cover those tokens.
    """
    pieces = [part.experts for turn in segment.turns for part in turn.parts if part.experts is not None]
    if not pieces:
        return {}
    rows = join_experts(pieces)
    tokens = sum(len(turn.new_ids) + turn.output_length for turn in segment.turns)
    if len(rows) != tokens - 1:
        raise InvariantError(
            f"rollout {segment.rollout_id}, turns {[turn.index for turn in segment.turns]}: {len(rows)} tokens have "
            f"routed experts, of {tokens} tokens all but the last must"
        )
    return {"routed_experts": rows}


def placeholder_meta(args: RolloutArgs, token: int) -> dict[str, object]:
    """Replay data for a two-token placeholder that never trains: the set of `token` alone, and the first experts."""
    meta: dict[str, object] = {}
    if args.rollout_top_p != 1.0:
        meta |= {"top_p_token_ids": [token], "top_p_token_offsets": [0, 1]}
    if (width := args.experts_width) is not None:
        # Distinct experts in each layer: slime reads a layer of nothing but expert 0 as one that was not captured.
        meta |= {"routed_experts": np.arange(width, dtype=np.int32) % (args.moe_router_topk or 1)}
    return meta


def require_replay(args: RolloutArgs, sample: Sample) -> None:
    """Raise InvariantError if a training Sample lacks replay data that slime needs."""
    absent = []
    if args.rollout_top_p != 1.0 and sample.rollout_top_p_token_ids is None:
        absent.append(f"top-p token sets (--rollout-top-p {args.rollout_top_p})")
    if args.use_rollout_routing_replay and sample.rollout_routed_experts is None:
        absent.append("routed experts (--use-rollout-routing-replay)")
    if absent:
        raise InvariantError(f"sample {sample.index} of {len(sample.tokens)} tokens has no {' and no '.join(absent)}")


def check_replay(sample: Sample, segment: Segment) -> None:
    """Compare a Sample's replay data with what the engine returned for each token.

    Raises:
        InvariantError: the top-p set of a trained token, or the experts of any token, differ.
    """
    where = f"rollout {segment.rollout_id}, turns {[turn.index for turn in segment.turns]}"
    experts = experts_meta(segment)
    rows = np.asarray(() if sample.rollout_routed_experts is None else sample.rollout_routed_experts)
    if experts and not np.array_equal(rows.reshape(len(rows), -1), experts["routed_experts"]):
        raise InvariantError(
            f"routed experts of {len(rows)} tokens differ from the {len(experts['routed_experts'])} that the engine "
            f"gave ({where})"
        )
    ids, offsets = [], [0]
    for turn in segment.turns[segment.first_trained :]:
        glue = len(turn.new_ids) if turn is not segment.turns[segment.first_trained] else 0
        offsets += [offsets[-1]] * glue
        for part in turn.parts:
            sets = part.top_p if turn.index in segment.trained else None
            offsets += [offsets[-1]] * len(part.ids) if sets is None else [offsets[-1] + at for at in sets.offsets[1:]]
            ids += [] if sets is None else sets.ids
    if not ids:
        return
    mine = [
        np.asarray(() if values is None else values)
        for values in (sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets)
    ]
    if not all(np.array_equal(have, want) for have, want in zip(mine, (ids, offsets), strict=True)):
        raise InvariantError(
            f"top-p sets of {len(mine[1]) - 1} tokens with {len(mine[0])} ids differ from those of {len(offsets) - 1} "
            f"tokens with {len(ids)} ids that the engine gave ({where})"
        )


def _array(values: array) -> np.ndarray:
    return np.frombuffer(values, dtype=np.int32) if len(values) else np.empty(0, np.int32)

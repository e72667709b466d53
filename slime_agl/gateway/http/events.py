"""Events that an agent posts, in the form of Agent Lightning 1.x: a reward, or a note that nobody reads."""

from __future__ import annotations

import math
import time

from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.sessions.session import Session
from slime_agl.gateway.turn.commits import TurnSink

REWARD = "reward"


def take_event(session: Session, body: object, sink: TurnSink) -> dict[str, object]:
    """Take `{"event_type": ..., "data": {...}}`; a reward has its number in `data.value`. Returns the stored event.

    Raises:
        Refusal: 403 if the attempt's reward is not for its agent to give; 400 for a malformed event.
    """
    spec = session.spec
    if not spec.events:
        message = "this attempt takes no events; its reward is not the agent's to give (agl.agent.reward: agent)"
        raise Refusal(403, message, type="permission_error", code="forbidden")
    kind = body.get("event_type") if isinstance(body, dict) else None
    data = body.get("data", {}) if isinstance(body, dict) else None
    if not isinstance(kind, str) or not kind or not isinstance(data, dict):
        raise Refusal(400, "an event is an object with `event_type`, a string, and `data`, an object")
    if kind == REWARD:
        sink.rewarded(spec.rollout_id, spec.attempt_id, _reward(data.get("value")))
        session.count("posted_rewards")
    else:
        session.count("posted_events")
    ids = {"rollout_id": spec.rollout_id, "attempt_id": spec.attempt_id}
    return {"event_type": kind, **ids, "timestamp": time.time(), "data": data}


def _reward(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refusal(400, f"a reward is a finite number in `data.value`, got {value!r:.100}", param="data.value")
    return float(value)

"""Sampling a turn at the engine, through aborts and weight updates."""

from __future__ import annotations

import asyncio
import copy
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from slime_agl.engine.base import Engine, EngineRequest
from slime_agl.errors import EngineRejected, InvariantError
from slime_agl.gateway.refusal import bad_field, context_overflow
from slime_agl.gateway.request import TurnRequest
from slime_agl.gateway.sessions.calls import Call
from slime_agl.gateway.sessions.session import Session, SessionSpec
from slime_agl.gateway.turn.held_prompts import ids_json, joined_json
from slime_agl.gateway.turn.stops import Stops
from slime_agl.trace.turn import ABORT, LENGTH, Sampled

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
CONSTRAINTS = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})


class Draft:
    """A turn while it is sampled.

    shown: tokens of its prompt. json: prompt and output so far, as decimal text. started: when it was asked for.
    extra: further fields of its engine requests. model: the name asked for.
    covered: leading tokens of prompt and output whose routed experts are held.
    dropped: what was sampled before the turn began anew.
    """

    def __init__(
        self, shown: int, json: bytes, extra: Mapping[str, Any], covered: int, model: str, started: float
    ) -> None:  # fmt: skip
        self.shown, self.json, self.extra, self.covered, self.model = shown, json, extra, covered, model
        self._blank = (json, covered)
        self.dropped: list[Draft] = []
        self.parts: list[Sampled] = []
        self.length = 0
        self.started = started
        self.engine_seconds = 0.0

    def add(self, part: Sampled) -> None:
        self.parts.append(part)
        self.length += len(part.ids)
        self.json = joined_json(self.json, ids_json(part.ids))
        if part.experts is not None:
            self.covered = part.experts.end

    def begin_anew(self) -> None:
        """Put aside what was sampled so far."""
        gone = copy.copy(self)
        gone.dropped = []
        self.dropped.append(gone)
        self.json, self.covered = self._blank
        self.parts, self.length = [], 0


class Sampler:
    """Asks the engine for tokens.

    policy: 'trainer' or 'agent', whose temperature, top_p and other sampling parameters count.
    context_limit: the engine's own limit in tokens, None when unknown. decode: ids to text, special tokens too.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        policy: Literal["trainer", "agent"],
        context_limit: int | None,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._engine, self._policy, self._context_limit, self._decode = engine, policy, context_limit, decode

    def context(self, spec: SessionSpec) -> int | None:
        """Most tokens of a sequence of an attempt, None when unknown."""
        limits = [limit for limit in (spec.context_limit, self._context_limit) if limit is not None]
        return min(limits) if limits else None

    def params(self, session: Session, request: TurnRequest, prompt_length: int) -> dict[str, Any]:
        """SGLang sampling parameters of a turn.

        Raises:
            Refusal: the prompt leaves no room under the context limit.
        """
        spec = session.spec
        context = self.context(spec)
        rooms = [limit for limit in (spec.response_limit, request.max_tokens) if limit is not None]
        if context is not None:
            if prompt_length >= context:
                raise session.overflowed(context_overflow(prompt_length, context))
            rooms.append(context - prompt_length)
        if not rooms:
            raise bad_field(
                "max_tokens",
                "no limit for this turn is known; send max_tokens, or train with --rollout-max-response-len",
            )
        room = min(rooms)
        params = {**spec.sampling, **request.constraint, "max_new_tokens": room}
        if request.stop:
            own = params.get("stop") or []
            params["stop"] = [*([own] if isinstance(own, str) else own), *request.stop]
        if request.stop_ids:
            params["stop_token_ids"] = [*(params.get("stop_token_ids") or []), *request.stop_ids]
        return params | self._chosen(session, request, params)

    def _chosen(self, session: Session, request: TurnRequest, params: Mapping[str, Any]) -> dict[str, Any]:
        wished = {name: value for name, value in request.sampling.items() if params.get(name) != value}
        if self._policy == "trainer":
            session.counters["sampling_overridden"] += bool(wished)
            return {}
        session.counters["sampling_by_agent"] += bool(wished)
        return wished

    async def sample(self, session: Session, call: Call, draft: Draft, params: Mapping[str, Any]) -> None:
        """Fill the draft. An answer cut by an abort goes on from its partial output, unless nobody wants it.

        Under a constraint it begins anew, because the engine would start the grammar afresh in the middle of it.

        Raises:
            EngineError: the engine failed, or read a prompt with images in its own way; the draft keeps what came.
            InvariantError: the engine was shown another prompt than it was sent, or its answer lacks replay data.
        """
        limit = params["max_new_tokens"]
        stops = Stops.of(params, self._decode)
        constrained = not CONSTRAINTS.isdisjoint(name for name, value in params.items() if value is not None)
        pause = FIRST_PAUSE
        while True:
            asked = {**params, "max_new_tokens": limit - draft.length}
            if draft.parts and stops.strings:
                asked["stop"] = stops.after(draft.parts)
            part = stops.settled(draft.parts, await self._ask(session, call, draft, asked))
            draft.add(part)
            if part.finish != ABORT or not call.wanted:
                return
            if draft.length and constrained:
                session.counters["restarted_turns"] += 1
                draft.begin_anew()
                continue
            session.counters["continued_turns"] += 1
            if draft.length >= limit:
                draft.add(Sampled(array("i"), array("d"), LENGTH))
                return
            pause = FIRST_PAUSE if len(part.ids) else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _ask(self, session: Session, call: Call, draft: Draft, params: Mapping[str, Any]) -> Sampled:
        if not session.gate.is_open:
            held = time.perf_counter()
            await session.gate.passed(call)
            draft.engine_seconds += time.perf_counter() - held
        if not call.wanted:
            return Sampled(array("i"), array("d"), ABORT)
        rid = session.request_id()
        shown, spec = draft.shown + draft.length, session.spec
        call.rids.add(rid)
        asked = time.perf_counter()
        try:
            part = await self._engine.generate(
                EngineRequest(
                    draft.json,
                    shown,
                    params,
                    rid,
                    spec.session_key,
                    draft.extra,
                    spec.experts_width,
                    draft.covered,
                    draft.model,
                )
            )
        finally:
            call.rids.discard(rid)
            draft.engine_seconds += time.perf_counter() - asked
        if part.prompt_tokens and part.prompt_tokens != shown:
            if images := draft.extra.get("image_data"):
                # SGLang decodes such a prompt and encodes it again, which ids that are not canonical do not survive.
                draft.add(part)
                raise EngineRejected(
                    f"the engine was sent {shown} tokens with {len(images)} images and read "
                    f"{part.prompt_tokens}; what it sampled cannot be trained ({session.ledger})"
                )
            raise InvariantError(
                f"the engine says it was shown {part.prompt_tokens} tokens, but it was sent {shown} "
                f"({session.ledger}); something between gateway and engine changes prompts"
            )
        return part

"""Second stage of a turn: prompt in, sampled parts out, across aborts and weight updates.

A weight update aborts running requests. The agent must not notice, so the turn resumes from its partial output: the
next request shows the engine prompt plus output so far, and each part keeps the weight version that sampled it.
"""

from __future__ import annotations

import asyncio
import copy
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from slime_agl.engine.base import Engine, EngineRequest
from slime_agl.engine.id_text import IdText
from slime_agl.errors import EngineRejected, InvariantError
from slime_agl.gateway.refusal import bad_field, context_overflow
from slime_agl.gateway.request import TurnRequest
from slime_agl.gateway.sessions.calls import Call
from slime_agl.gateway.sessions.session import Session, SessionSpec
from slime_agl.gateway.turn.prompt import Prompt
from slime_agl.gateway.turn.stops import Stops
from slime_agl.trace.turn import ABORT, LENGTH, Sampled

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
CONSTRAINTS = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})


class Draft:
    """A turn being sampled.

    ids: prompt and output so far. params: SGLang's sampling parameters. extra: further fields of its engine requests.
    covered: leading tokens of prompt and output whose routed experts are known.
    started: time of the request. dropped: earlier attempts at this turn that were restarted.
    """

    def __init__(
        self,
        ids: IdText,
        *,
        params: Mapping[str, Any],
        extra: Mapping[str, Any],
        covered: int,
        model: str,
        started: float,
    ) -> None:
        self.ids, self.params, self.extra, self.covered, self.model = ids, params, extra, covered, model
        self._blank = (ids, covered)
        self.dropped: list[Draft] = []
        self.parts: list[Sampled] = []
        self.length = 0
        self.started = started
        self.engine_seconds = 0.0

    def add(self, part: Sampled) -> None:
        self.parts.append(part)
        self.length += len(part.ids)
        self.ids = self.ids.extended(part.ids)
        if part.experts is not None:
            self.covered = part.experts.end

    def restart(self) -> None:
        """Set aside the tokens sampled so far."""
        gone = copy.copy(self)
        gone.dropped = []
        self.dropped.append(gone)
        self.ids, self.covered = self._blank
        self.parts, self.length = [], 0


class Sampler:
    """Samples drafts at the engine.

    policy: whose temperature, top_p and other sampling parameters apply, 'trainer' or 'agent'.
    context_limit: the engine's own limit in tokens, None if unknown. decode: ids to text, including special tokens.
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
        """Token limit of an attempt's sequences, None if unknown."""
        limits = [limit for limit in (spec.context_limit, self._context_limit) if limit is not None]
        return min(limits) if limits else None

    def drafts(self, session: Session, request: TurnRequest, prompt: Prompt, began: float) -> list[Draft]:
        """Make the drafts of a request. Their engine requests carry all images of the prompt, in order.

        Raises:
            Refusal: the prompt leaves no room under the context limit.
        """
        ids = session.texts.of(prompt.parent).extended(prompt.new_ids)
        params = self._params(session, request, prompt.parent, ids.length)
        extra = request.extra
        images = session.ledger.images(prompt.parent) + (() if prompt.media is None else prompt.media.images)
        if images:
            extra = {**extra, "image_data": images}
        return [
            Draft(
                ids,
                params=_seeded(params, number) if number else params,
                extra=extra,
                covered=session.ledger.covered(prompt.parent),
                model=request.model,
                started=began,
            )
            for number in range(request.n)
        ]

    def _params(self, session: Session, request: TurnRequest, parent: int | None, length: int) -> dict[str, Any]:
        spec = session.spec
        context = self.context(spec)
        rooms = [limit for limit in (spec.response_limit, request.max_tokens) if limit is not None]
        if context is not None:
            if length >= context:
                refusal = session.overflowed(context_overflow(length, context))
                refusal.after = parent
                raise refusal
            rooms.append(context - length)
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
        wished = {name: value for name, value in request.sampling.items() if params.get(name) != value}
        if not wished:
            return params
        by_agent = self._policy == "agent"
        session.count("sampling_by_agent" if by_agent else "sampling_overridden")
        return params | wished if by_agent else params

    async def sample(self, session: Session, call: Call, drafts: Sequence[Draft]) -> None:
        """Fill the drafts concurrently. If one fails, cancel the others before raising its error. See `_fill`."""
        if len(drafts) == 1:
            await self._fill(session, call, drafts[0])
            return
        tasks = [asyncio.ensure_future(self._fill(session, call, draft)) for draft in drafts]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _fill(self, session: Session, call: Call, draft: Draft) -> None:
        """Sample a draft. After an abort, resume from the partial output while the call is wanted.

        A constrained turn restarts instead: the engine would begin the grammar again in the middle of the output.

        Raises:
            EngineError: the engine failed, or re-encoded a prompt with images; the draft keeps what was sampled.
            InvariantError: the engine reports another prompt length than it was sent.
        """
        params, limit = draft.params, draft.params["max_new_tokens"]
        stops = Stops.of(params, self._decode) if params.get("stop") else None
        constrained = any([params.get(name) is not None for name in CONSTRAINTS])
        pause = FIRST_PAUSE
        while True:
            asked = {**params, "max_new_tokens": limit - draft.length}
            if draft.parts and stops:
                asked["stop"] = stops.after(draft.parts)
            part = await self._ask(session, call, draft, asked)
            if stops:
                part = stops.settled(draft.parts, part)
            draft.add(part)
            if part.finish != ABORT or not call.wanted:
                return
            # An abort nobody here asked for: the engine is updating weights, or was told to drop all requests.
            if draft.length and constrained:
                session.count("restarted_turns")
                draft.restart()
                continue
            session.count("continued_turns")
            if draft.length >= limit:
                draft.add(Sampled(ids=array("i"), logprobs=array("d"), finish=LENGTH))
                return
            pause = FIRST_PAUSE if len(part.ids) else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _ask(self, session: Session, call: Call, draft: Draft, params: Mapping[str, Any]) -> Sampled:
        if not session.gate.is_open:
            parked = time.perf_counter()
            await session.gate.passed(call)
            draft.engine_seconds += time.perf_counter() - parked
        if not call.wanted:
            return Sampled(ids=array("i"), logprobs=array("d"), finish=ABORT)
        rid = session.request_id()
        sent, spec = draft.ids.length, session.spec
        call.asks(rid)
        asked = time.perf_counter()
        try:
            part = await self._engine.generate(
                EngineRequest(
                    prompt=draft.ids,
                    sampling_params=params,
                    rid=rid,
                    session_key=spec.session_key,
                    extra=draft.extra,
                    experts_width=spec.experts_width,
                    experts_from=draft.covered,
                    model=draft.model,
                )
            )
        finally:
            call.heard(rid)
            draft.engine_seconds += time.perf_counter() - asked
        if part.prompt_tokens and part.prompt_tokens != sent:
            if images := draft.extra.get("image_data"):
                # SGLang decodes and re-encodes prompts with images, which changes ids that are not canonical.
                draft.add(part)
                raise EngineRejected(
                    f"the engine was sent {sent} tokens with {len(images)} images and read "
                    f"{part.prompt_tokens}; what it sampled cannot be trained ({session.ledger})"
                )
            raise InvariantError(
                f"the engine reports a prompt of {part.prompt_tokens} tokens, but it was sent {sent} "
                f"({session.ledger}); something between gateway and engine changes prompts"
            )
        return part


def _seeded(params: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Give siblings of a request with a fixed seed distinct seeds; else all n answers would be identical."""
    seed = params.get("sampling_seed")
    return params if seed is None else {**params, "sampling_seed": seed + number}

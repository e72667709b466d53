"""Making a turn: find what it continues, extend those ids, sample, parse, commit."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.messages import Reply
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import EngineError, EngineRejected, InvariantError, TemplateError
from slime_agl.gateway.prompts import Prompt, PromptMaker
from slime_agl.gateway.refusal import CONTEXT_OVERFLOW, Refusal, bad_field
from slime_agl.gateway.request import Answer, TurnRequest
from slime_agl.gateway.sessions.calls import Call
from slime_agl.gateway.sessions.session import Session, SessionSpec
from slime_agl.gateway.turn.begun import without_begun
from slime_agl.gateway.turn.conversation import Node
from slime_agl.gateway.turn.own_prompts import TextNode
from slime_agl.gateway.turn.sampling import Draft, Sampler
from slime_agl.gateway.turn.shared import Shared
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import LENGTH, STOP, Turn

THINK = "<think>"
OPENINGS_HELD = 1024


class TurnSink(Protocol):
    """Is told of every committed turn, on the gateway's thread, before the agent sees the answer. Must be quick."""

    def turn_committed(self, rollout_id: str, attempt_id: str, turn: Turn, ledger: Ledger) -> None: ...


class TurnMaker:
    """Makes turns for any session, on the gateway's event loop."""

    def __init__(
        self, *, sampler: Sampler, renderer: Renderer, delta: DeltaEncoder, parser: ReplyParser, sink: TurnSink
    ) -> None:
        self._sampler, self._renderer, self._parser, self._sink = sampler, renderer, parser, sink
        self._shared = Shared()
        self._prompts = PromptMaker(renderer, delta, self._shared)
        self._openings: dict[bytes, bool] = {}

    def close(self) -> None:
        self._prompts.close()

    def context(self, spec: SessionSpec) -> int | None:
        """Most tokens of a sequence of an attempt, None when unknown."""
        return self._sampler.context(spec)

    async def shows_images(self, session: Session) -> bool:
        """Whether there is a processor for images; loads it the first time."""
        return await self._prompts.shows_images(session)

    async def serve(self, session: Session, request: TurnRequest, call: Call) -> list[Answer]:
        """Sample `request.n` turns and commit them.

        Raises:
            Refusal: nothing was sampled, or the engine failed; the session goes on.
            InvariantError: the engine was not shown what we hold; the session is broken.
        """
        began = time.time()
        drafts: list[Draft] = []
        prompt: Prompt | None = None
        try:
            prompt = await self._prompts.make(session, request)
            params = self._sampler.params(session, request, prompt.length)
            drafts = [_draft(session, request, prompt, began) for _ in range(request.n)]
            await _all(
                [
                    self._sampler.sample(session, call, draft, _seeded(params, number))
                    for number, draft in enumerate(drafts)
                ]
            )
            await call.claimed()
            self._commit_dropped(session, request, prompt, drafts)
            return [self._commit(session, request, prompt, draft, call.refused) for draft in drafts]
        except TemplateError as error:
            raise _template_refusal(error) from error
        except Refusal as refusal:
            _note_overflow(session, prompt, refusal)
            raise
        except InvariantError as error:
            session.broken = session.broken or error
            raise
        except EngineError as error:
            session.engine_errors.append(str(error))
            self._commit_dropped(session, request, prompt, drafts)
            for draft in drafts:
                if draft.length:
                    self._commit(session, request, prompt, draft, "engine_error")
            refusal = _engine_refusal(error)
            _note_overflow(session, prompt, refusal)
            raise refusal from error

    async def serve_all(self, session: Session, requests: Sequence[TurnRequest], call: Call) -> list[Answer]:
        """Serve the requests of one call side by side; their answers come in order.

        Raises:
            Refusal, InvariantError: see `serve`; what the other requests sampled is kept.
        """
        if len(requests) == 1:
            return await self.serve(session, requests[0], call)
        done = await asyncio.gather(*(self.serve(session, r, call) for r in requests), return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        return [answer for answers in done for answer in answers]

    async def count(self, session: Session, request: TurnRequest) -> int:
        """Tokens that the engine would be shown for a request. Raises Refusal."""
        try:
            return (await self._prompts.make(session, request)).length
        except TemplateError as error:
            raise _template_refusal(error) from error

    def _commit(self, session: Session, request: TurnRequest, prompt: Prompt, draft: Draft, reason: str) -> Answer:
        turn = Turn(
            index=len(session.ledger.turns),
            parent=prompt.parent,
            new_ids=prompt.new_ids,
            parts=tuple(draft.parts),
            turn_id=f"{request.id_prefix}{session.nonce}{len(session.ledger.turns):06x}",
            fork=_fork(session, prompt),
            untrained=reason,
            model=request.model,
            started=draft.started,
            ended=time.time(),
            engine_seconds=draft.engine_seconds,
            media=prompt.media,
        )
        reply = self._text_reply(turn) if request.prompt is not None else self._reply(turn, request, prompt)
        session.ledger.commit(turn)
        session.prompts.keep(turn.index, draft.json)
        if not reason:
            self._remember(session, turn, request, prompt, reply)
            session.last_text = reply.text
            session.counters["ill_formed_replies"] += reply.ill_formed
            session.counters["constrained_turns"] += bool(request.constraint)
        self._sink.turn_committed(session.spec.rollout_id, session.spec.attempt_id, turn, session.ledger)
        shown = session.ledger.shown(turn.index) if request.return_ids else None
        return Answer(turn, without_begun(reply, request.begun or ""), prompt.length, shown)

    def _commit_dropped(
        self, session: Session, request: TurnRequest, prompt: Prompt | None, drafts: Sequence[Draft]
    ) -> None:
        """Keep what was sampled before turns began anew; nobody was shown it, and it does not train."""
        for draft in drafts:
            for gone in draft.dropped:
                self._commit(session, request, prompt, gone, "restarted")

    def _remember(
        self, session: Session, turn: Turn, request: TurnRequest, prompt: Prompt, reply: Reply
    ) -> None:  # fmt: skip
        """Let later requests find this turn by what they begin with."""
        session.last = None
        if request.prompt is None:
            session.last = self._node(turn, request, prompt, reply)
            session.conversation.add(session.last)
        elif prompt.start is not None and isinstance(request.prompt, str):
            whole = self._renderer.decode(list(turn.output_ids()))
            parent = prompt.start.node
            added = request.prompt[prompt.start.rest if parent else 0 :]
            session.own_prompts.add(TextNode(turn.index, added, reply.text, whole), parent)

    def _text_reply(self, turn: Turn) -> Reply:
        """What a turn says that no template shaped: its text, without what ended it."""
        ids = list(turn.output_ids())
        ended = turn.finish == STOP and bool(ids) and ids[-1] in self._renderer.stop_ids | {turn.matched}
        return _without_stop(turn, Reply(self._renderer.decode(ids[:-1] if ended else ids), "", ()))

    def _reply(self, turn: Turn, request: TurnRequest, prompt: Prompt) -> Reply:
        if isinstance(turn.matched, int):
            self._renderer.add_stop_id(turn.matched)
        reply = self._parser.parse(
            list(turn.output_ids()),
            finish=turn.finish,
            tools=request.tools,
            prompt_opens_think=self._opens_think(prompt.new_ids[-8:]),
            begun=prompt.begun,
            # Nine letters, because templates of the Mistral kind take no other length.
            mint=lambda number: f"c{turn.index:06d}{number:02d}",
        )
        if request.one_call and len(reply.tool_calls) > 1:
            reply = replace(reply, tool_calls=reply.tool_calls[:1])
        return _without_stop(turn, reply)

    def _opens_think(self, end: array) -> bool:
        """Whether a prompt that ends with these ids has opened `<think>`."""
        key = end.tobytes()
        if key not in self._openings:
            if len(self._openings) >= OPENINGS_HELD:
                self._openings.clear()
            self._openings[key] = self._renderer.decode(list(end)).rstrip().endswith(THINK)
        return self._openings[key]

    def _node(self, turn: Turn, request: TurnRequest, prompt: Prompt, reply: Reply) -> Node:
        last = next((part.ids[-1] for part in reversed(turn.parts) if len(part.ids)), None)
        unfinished = turn.finish == LENGTH and not (reply.tool_calls or reply.ill_formed) and bool(reply.text)
        tools = self._shared.tools(request.tools)
        added = tuple(self._shared.message(message) for message in prompt.added)
        return Node(
            turn.index, prompt.node, added, reply, tools, request.template_kwargs, last, unfinished, turn.turn_id
        )


def _fork(session: Session, prompt: Prompt) -> str:
    """Why the turn is not the plain continuation, as things stand at its commit."""
    if prompt.fork:
        return prompt.fork
    siblings = [i for i in session.ledger.children(prompt.parent) if not session.ledger.turns[i].untrained]
    if not siblings:
        return ""
    return "new_conversation" if prompt.parent is None else "branch"


def _without_stop(turn: Turn, reply: Reply) -> Reply:
    """The reply as agents get it: the stop string that ended the turn was sampled, and is left out."""
    if not isinstance(turn.matched, str) or not turn.matched or turn.matched not in reply.text:
        return reply
    return replace(reply, text=reply.text[: reply.text.rindex(turn.matched)], stopped_by=turn.matched)


def _template_refusal(error: TemplateError) -> Refusal:
    return bad_field("messages", str(error))


def _draft(session: Session, request: TurnRequest, prompt: Prompt, began: float) -> Draft:
    """The turn to be sampled; its engine requests hold all images of the prompt, those of held turns first."""
    images = session.ledger.images(prompt.parent) + (() if prompt.media is None else prompt.media.images)
    extra = {**request.extra, **({"image_data": images} if images else {})}
    return Draft(prompt.length, prompt.json, extra, session.ledger.covered(prompt.parent), request.model, began)


def _seeded(params: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Siblings of one request under a fixed seed each get a seed of their own."""
    if not number or params.get("sampling_seed") is None:
        return params
    return {**params, "sampling_seed": params["sampling_seed"] + number}


async def _all(coroutines: list[Any]) -> None:
    """Await all; when one fails, end the others before its error travels on."""
    if len(coroutines) == 1:
        await coroutines[0]
        return
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _note_overflow(session: Session, prompt: Prompt | None, refusal: Refusal) -> None:
    if refusal.code == CONTEXT_OVERFLOW and prompt is not None and prompt.parent is not None:
        session.ledger.full.add(prompt.parent)


def _engine_refusal(error: EngineError) -> Refusal:
    message = str(error)
    if isinstance(error, EngineRejected):
        overflow = "context length" in message
        return Refusal(400, message, code=CONTEXT_OVERFLOW if overflow else "engine_rejected")
    return Refusal(502, message, type="api_error", code="engine_unavailable")

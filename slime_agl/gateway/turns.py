"""Making a turn: find what it continues, extend those ids, sample, parse, commit."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from slime_agl.chat.delta import Continuation, Delta, DeltaEncoder, Fork
from slime_agl.chat.images import images_of
from slime_agl.chat.messages import Reply, normalise, reply_message
from slime_agl.chat.opening import call_opening
from slime_agl.chat.parse import ReplyParser
from slime_agl.chat.prefill import render_open
from slime_agl.chat.renderer import Renderer
from slime_agl.errors import EngineError, EngineRejected, InvariantError, TemplateError
from slime_agl.gateway.begun import without_begun
from slime_agl.gateway.calls import Call
from slime_agl.gateway.conversation import Context, Match, Message, Node
from slime_agl.gateway.encoders import Encoders
from slime_agl.gateway.held_prompts import ids_json, joined_json
from slime_agl.gateway.json_text import json_bytes
from slime_agl.gateway.length import HEAD_PER_TOKEN, check_length
from slime_agl.gateway.own_prompts import Start, TextNode, longest_held
from slime_agl.gateway.refusal import CONTEXT_OVERFLOW, Refusal, bad_field
from slime_agl.gateway.request import ANY_TOOL, Answer, TurnRequest
from slime_agl.gateway.sampling import Draft, Sampler
from slime_agl.gateway.session import Session, SessionSpec
from slime_agl.gateway.shared import Shared
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import LENGTH, STOP, Media, Turn, token_array

THINK = "<think>"
OPENINGS_HELD = 1024
# Letters said in a prompt, and tools, that are rendered and encoded in about the time that a thread takes to begin.
SHORT_PROMPT, FEW_TOOLS, LONG_TOOLS = 4000, 16, 40_000
# Letters of a continuation, whose template need not be run.
SHORT_DELTA = 40_000
T = TypeVar("T")


class TurnSink(Protocol):
    """Is told of every committed turn, on the gateway's thread, before the agent sees the answer. Must be quick."""

    def turn_committed(self, rollout_id: str, attempt_id: str, turn: Turn, ledger: Ledger) -> None: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """parent: the turn continued, or None. new_ids: what the engine has not seen. length, json: the whole prompt.

    node: that turn in the conversation. added: the messages since then, as sent.
    media: the images that `new_ids` show.
    start: how a text that the agent made itself begins. begun: the part of the answer that the prompt ends with.
    """

    parent: int | None
    new_ids: array
    length: int
    json: bytes
    fork: str
    node: Node | None = None
    added: tuple[Message, ...] = ()
    media: Media | None = None
    start: Start | None = None
    begun: str = ""


class TurnMaker:
    """Makes turns for any session, on the gateway's event loop."""

    def __init__(
        self, *, sampler: Sampler, renderer: Renderer, delta: DeltaEncoder, parser: ReplyParser, sink: TurnSink
    ) -> None:
        self._sampler, self._renderer, self._delta, self._parser, self._sink = sampler, renderer, delta, parser, sink
        self._shared = Shared()
        self._openings: dict[bytes, bool] = {}
        self._encoders = Encoders()
        self._images: bool | None = None

    def close(self) -> None:
        self._encoders.close()

    def context(self, spec: SessionSpec) -> int | None:
        """Most tokens of a sequence of an attempt, None when unknown."""
        return self._sampler.context(spec)

    async def shows_images(self, session: Session) -> bool:
        """Whether there is a processor for images; loads it the first time."""
        if self._images is None:
            self._images = await self._encoders.run(session, self._renderer.vision.available)
        return self._images

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
            prompt = await self._prompt(session, request)
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
            return (await self._prompt(session, request)).length
        except TemplateError as error:
            raise _template_refusal(error) from error

    async def _prompt(self, session: Session, request: TurnRequest) -> Prompt:
        if isinstance(request.prompt, str):
            return await self._text_prompt(session, request, request.prompt)
        if request.prompt is not None:
            return self._ids_prompt(session, request.prompt)
        if request.begun is not None and (prompt := await self._resumed(session, request, request.begun)):
            return prompt
        tools = self._shared.tools(request.tools)
        match = session.conversation.match(request.messages, tools, request.template_kwargs)
        prompt = await self._chat_prompt(session, request, match)
        return self._opened(prompt, request) if request.forced else prompt

    async def _resumed(self, session: Session, request: TurnRequest, begun: str) -> Prompt | None:
        """The prompt that goes on with a turn of ours: its ids as sampled, and the ids of what the agent wrote after."""
        node = session.conversation.unfinished(request.messages, request.tools, request.template_kwargs, begun)
        if node is None:
            return None
        written = token_array(await self._encoded(session, begun[len(node.reply.text) :]))
        return self._extended(session, node.index, written, node=node.parent, added=node.added, begun=begun)

    async def _text_prompt(self, session: Session, request: TurnRequest, text: str) -> Prompt:
        start = session.own_prompts.start(text, session.ledger, self._renderer.decode)
        fresh = start.parent is None and not start.head
        rest = await self._encoded(session, text[start.rest :], special=fresh and request.add_special_tokens)
        return self._extended(session, start.parent, start.head + token_array(rest), fork=start.fork, start=start)

    async def _encoded(self, session: Session, text: str, *, special: bool = False) -> Sequence[int]:
        """The ids of a text, encoded off the loop unless it is short."""
        encode = partial(self._renderer.encode, text, add_special_tokens=special)
        if len(text) < SHORT_PROMPT:
            return encode()
        return await self._off_loop(session, encode, len(text), text)

    async def _off_loop(self, session: Session, work: Callable[[], T], said: int, *texts: str) -> T:
        """Render or encode what says `said` characters, of which `texts` are most, on a thread.

        Raises:
            Refusal: 400 context_length_exceeded, where the first of it is seen to be more than the context holds.
        """
        tokens = session.bounds.tokens
        if said <= HEAD_PER_TOKEN * tokens:
            return await self._encoders.run(session, work)

        def checked() -> T:
            check_length(texts, tokens, self._renderer.encode)
            return work()

        try:
            return await self._encoders.run(session, checked)
        except Refusal as refusal:
            raise session.overflowed(refusal) from None

    def _ids_prompt(self, session: Session, ids: tuple[int, ...]) -> Prompt:
        parent = longest_held(session.ledger, ids)
        held = 0 if parent is None else session.ledger.length(parent)
        return self._extended(session, parent, token_array(ids[held:]))

    def _extended(self, session: Session, parent: int | None, new_ids: array, **more: Any) -> Prompt:
        """The prompt that is turn `parent` and `new_ids`."""
        if parent is None:
            return Prompt(None, new_ids, len(new_ids), ids_json(new_ids), **{"fork": "", **more})
        json = joined_json(session.prompts.text(parent), ids_json(new_ids))
        return Prompt(parent, new_ids, session.ledger.length(parent) + len(new_ids), json, **{"fork": "", **more})

    def _opened(self, prompt: Prompt, request: TurnRequest) -> Prompt:
        """The prompt with the beginning of a call that must be made."""
        name = None if request.forced == ANY_TOOL else request.forced
        try:
            opening = call_opening(self._renderer, request.tools or [], name, request.template_kwargs)
        except TemplateError as error:
            raise bad_field("tool_choice", str(error)) from error
        ids = token_array(self._renderer.encode(opening.text))
        json = joined_json(prompt.json, ids_json(ids))
        length = prompt.length + len(ids)
        return replace(prompt, new_ids=prompt.new_ids + ids, length=length, json=json, begun=opening.call)

    async def _chat_prompt(self, session: Session, request: TurnRequest, match: Match) -> Prompt:
        normal, fork = normalise(list(match.new)), match.fork
        begun = request.begun or ""
        if (node := match.node) is not None:
            try:
                delta = await self._continue(session, node, normal, request)
            except Refusal:
                session.ledger.full.add(node.index)
                raise
            if isinstance(delta, Delta):
                session.counters["rendered_deltas"] += delta.rendered
                return self._extended(
                    session, node.index, token_array(delta.ids), fork=fork, node=node, added=match.new,
                    media=delta.media, begun=begun,
                )  # fmt: skip
            fork = delta.reason
            normal = [*Context(node), reply_message(node.reply), *normal]
        ids, media = await self._encode(session, normal, request)
        added = tuple(request.messages)
        return self._extended(session, None, token_array(ids), fork=fork, added=added, media=media, begun=begun)

    async def _continue(
        self, session: Session, node: Node, normal: list[Message], request: TurnRequest
    ) -> Delta | Fork:
        kwargs = dict(request.template_kwargs)
        going_on = Continuation(
            Context(node), node.reply, normal, node.tools, kwargs, node.last_id, request.begun
        )  # fmt: skip
        texts = _texts(normal)
        said = sum(map(len, texts))
        if said < SHORT_DELTA and self._delta.quick(going_on) and not images_of(normal):
            return self._delta.delta(going_on)
        return await self._off_loop(session, partial(self._delta.delta, going_on), said, *texts)

    async def _encode(
        self, session: Session, messages: list[Message], request: TurnRequest
    ) -> tuple[list[int], Media | None]:
        """Render and encode a whole prompt; off the loop, unless that takes longer than doing it here."""
        kwargs = dict(request.template_kwargs)

        def encode() -> tuple[list[int], Media | None]:
            if request.begun is None:
                text = self._renderer.render(messages, request.tools, kwargs)
            else:
                text = render_open(self._renderer, messages, request.begun, request.tools, kwargs)
            return self._renderer.shown(text, messages)

        texts = _texts(messages)
        said = sum(map(len, texts))
        if request.tools:
            texts.append(json_bytes(request.tools).decode("utf-8", "replace"))
        whole = said + sum(map(len, texts[len(messages) :]))
        if said < SHORT_PROMPT and whole < LONG_TOOLS and len(request.tools or ()) <= FEW_TOOLS:
            if not images_of(messages):
                return encode()
        return await self._off_loop(session, encode, whole, *texts)

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


def _texts(messages: Sequence[Message]) -> list[str]:
    """What each of the normalised messages says, without its images."""
    contents = [message["content"] for message in messages]
    return [
        content if isinstance(content, str) else " ".join(part["text"] for part in content if part["type"] == "text")
        for content in contents
    ]


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

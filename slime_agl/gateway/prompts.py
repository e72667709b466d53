"""The prompt of a turn: the ids of the turn that it continues, and those of what is new."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from slime_agl.chat.template.delta import Continuation, Delta, DeltaEncoder, Fork
from slime_agl.chat.template.images import images_of
from slime_agl.chat.template.messages import normalise, reply_message
from slime_agl.chat.template.opening import call_opening
from slime_agl.chat.template.prefill import render_open
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import TemplateError
from slime_agl.gateway.json_text import json_bytes
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.request import ANY_TOOL, TurnRequest
from slime_agl.gateway.sessions.session import Session
from slime_agl.gateway.turn.conversation import Context, Match, Message, Node
from slime_agl.gateway.turn.encoders import Encoders
from slime_agl.gateway.turn.held_prompts import ids_json, joined_json
from slime_agl.gateway.turn.length import HEAD_PER_TOKEN, check_length
from slime_agl.gateway.turn.own_prompts import Start, longest_held
from slime_agl.gateway.turn.shared import Shared
from slime_agl.trace.turn import Media, token_array

# Letters said in a prompt, and tools, that are rendered and encoded in about the time that a thread takes to begin.
SHORT_PROMPT, FEW_TOOLS, LONG_TOOLS = 4000, 16, 40_000
# Letters of a continuation, whose template need not be run.
SHORT_DELTA = 40_000
T = TypeVar("T")


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


class PromptMaker:
    """Makes prompts for any session, on the gateway's event loop."""

    def __init__(self, renderer: Renderer, delta: DeltaEncoder, shared: Shared) -> None:
        self._renderer, self._delta, self._shared = renderer, delta, shared
        self._encoders = Encoders()
        self._images: bool | None = None

    def close(self) -> None:
        self._encoders.close()

    async def shows_images(self, session: Session) -> bool:
        """Whether there is a processor for images; loads it the first time."""
        if self._images is None:
            self._images = await self._encoders.run(session, self._renderer.vision.available)
        return self._images

    async def make(self, session: Session, request: TurnRequest) -> Prompt:
        """The prompt of a request. Raises Refusal, TemplateError."""
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


def _texts(messages: Sequence[Message]) -> list[str]:
    """What each of the normalised messages says, without its images."""
    contents = [message["content"] for message in messages]
    return [
        content if isinstance(content, str) else " ".join(part["text"] for part in content if part["type"] == "text")
        for content in contents
    ]

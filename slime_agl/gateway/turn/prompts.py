"""First stage of a turn: request and session in, prompt out.

Continuing a turn keeps its exact ids and encodes only the new messages. Rendering and encoding the whole history again
would cost time with its length, and would not reproduce sampled ids: encode(decode(ids)) may differ from ids.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from functools import partial

from slime_agl.chat.template.delta import Delta, DeltaEncoder
from slime_agl.chat.template.messages import normalise, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.tail import Continuation, Fork, TakesLong
from slime_agl.chat.template.tools import Tools
from slime_agl.gateway.refusal import Refusal
from slime_agl.gateway.request import Message, TurnRequest
from slime_agl.gateway.sessions.session import Session
from slime_agl.gateway.turn.begun import forced, resumed
from slime_agl.gateway.turn.conversation import Context, Node
from slime_agl.gateway.turn.long_texts import SHORT_TEXT, LongTexts
from slime_agl.gateway.turn.own_prompts import ids_prompt, text_prompt
from slime_agl.gateway.turn.prompt import Prompt
from slime_agl.gateway.turn.shared import Shared
from slime_agl.trace.turn import Media

# Number of tools, and characters of a prompt with tools, below which rendering inline is cheaper than a thread hop.
FEW_TOOLS, LONG_TOOLS = 16, 40_000
# Characters below which a continuation that needs no template run is encoded inline.
SHORT_DELTA = 40_000


class PromptMaker:
    """Makes prompts for any session, on the gateway's event loop."""

    def __init__(self, renderer: Renderer, delta: DeltaEncoder) -> None:
        self._renderer, self._delta = renderer, delta
        self._shared = Shared()
        self._long = LongTexts(renderer)

    def close(self) -> None:
        self._long.close()

    async def shows_images(self, session: Session) -> bool:
        """Load the image processor on first use; return False if there is none."""
        return await self._long.shows_images(session)

    async def make(self, session: Session, request: TurnRequest) -> Prompt:
        """Make the prompt of a request. Raises Refusal, TemplateError."""
        tools = request.tools and self._shared.tools(request.tools)
        if isinstance(request.prompt, tuple):
            return ids_prompt(session, request.prompt)
        if request.prompt is not None:
            return await text_prompt(session, request.prompt, self._long, special=request.add_special_tokens)
        if request.begun is not None and (prompt := await resumed(session, request, self._long)):
            return prompt
        prompt = await self._chat_prompt(session, request, tools)
        return forced(prompt, request, self._renderer) if request.forced else prompt

    async def _chat_prompt(self, session: Session, request: TurnRequest, tools: Tools | None) -> Prompt:
        match = session.conversation.match(request.messages, tools, request.template_kwargs)
        normal, fork = normalise(list(match.new)), match.fork
        shown = None
        if any(message["role"] == "system" for message in normal[match.node is None :]):
            shown = self._systems(session, normal, first=match.node is None)
            normal = normal if shown is None else shown
        if (node := match.node) is not None:
            try:
                delta = await self._continue(session, node, normal, request)
            except Refusal as refusal:
                # A sequence without room for its next prompt counts as truncated, so the ledger must learn of it.
                refusal.after = node.index
                raise
            if isinstance(delta, Delta):
                if delta.rendered:
                    session.count("rendered_deltas")
                return Prompt(
                    parent=node.index,
                    new_ids=delta.ids,
                    fork=fork,
                    media=delta.media,
                    node=node,
                    added=self._added(match.new),
                    shown=None if shown is None else tuple(shown),
                    tools=tools,
                    begun=request.begun or "",
                )
            # The template cannot extend this turn. A new root is safe: the kept turn stays as it was sampled.
            fork = delta.reason
            normal = [*Context(node), reply_message(node.reply), *normal]
            if shown is not None or any(one.shown is not None for one in node.path()):
                shown = normal
        added = self._added(request.messages)
        ids, media = await self._encode(session, normal, request)
        return Prompt(
            parent=None,
            new_ids=ids,
            fork=fork,
            media=media,
            added=added,
            shown=None if shown is None else tuple(shown),
            tools=tools,
            begun=request.begun or "",
        )

    def _systems(self, session: Session, normal: list[Message], *, first: bool) -> list[Message] | None:
        """Return messages with system messages as the template takes them, and count those; None if as sent."""
        shown = self._delta.shown(normal, first=first)
        if shown == normal:
            return None
        session.count("system_messages_reshaped", _systems_in(normal) - _systems_in(shown))
        return shown

    def _added(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages to store in the conversation; attempts share equal system messages to save memory."""
        return tuple(self._shared.message(m) if m.get("role") == "system" else m for m in messages)

    async def _continue(
        self, session: Session, node: Node, normal: list[Message], request: TurnRequest
    ) -> Delta | Fork:
        kwargs = dict(request.template_kwargs)
        continuation = Continuation(
            context=Context(node),
            reply=node.reply,
            new_messages=normal,
            tools=node.tools,
            kwargs=kwargs,
            last_id=node.last_id,
            prefill=request.begun,
        )
        texts, images = _texts(normal)
        said = sum(map(len, texts))
        if said < SHORT_DELTA and not images:
            with contextlib.suppress(TakesLong):
                return self._delta.delta(continuation, quick=True)
        return await self._long.run(session, partial(self._delta.delta, continuation), said, *texts)

    async def _encode(
        self, session: Session, messages: list[Message], request: TurnRequest
    ) -> tuple[array, Media | None]:
        """Render and encode a whole prompt, on a thread unless it is so short that the hop would cost more."""
        kwargs = dict(request.template_kwargs)

        def encode() -> tuple[array, Media | None]:
            if request.begun is None:
                text = self._renderer.render(messages, request.tools, kwargs)
            else:
                text = self._renderer.render_open(messages, request.begun, request.tools, kwargs)
            return self._renderer.encode_with_images(text, messages)

        texts, images = _texts(messages)
        said = whole = sum(map(len, texts))
        if request.tools:
            texts.append(request.tools.text.decode("utf-8", "replace"))
            whole += len(texts[-1])
        few = len(request.tools or ()) <= FEW_TOOLS and whole < LONG_TOOLS
        if said < SHORT_TEXT and few and not images:
            return encode()
        return await self._long.run(session, encode, whole, *texts)


def _systems_in(messages: Sequence[Message]) -> int:
    return sum(message["role"] == "system" for message in messages)


def _texts(messages: Sequence[Message]) -> tuple[list[str], bool]:
    """Return the text of each normalised message, and whether any has parts other than plain text."""
    contents = [message["content"] for message in messages]
    plain = [content for content in contents if isinstance(content, str)]
    if len(plain) == len(contents):
        return plain, False
    texts = [
        content if isinstance(content, str) else " ".join(part["text"] for part in content if part["type"] == "text")
        for content in contents
    ]
    return texts, True

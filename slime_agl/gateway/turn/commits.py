"""Last stage of a turn: sampled parts in, answers out. The only writer of ledger, conversation and id texts.

A turn is committed before its answer is sent: a turn the agent has seen but the ledger has not could never train, and
the agent's next request would not find it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.template.messages import Reply
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import EngineError, EngineRejected
from slime_agl.gateway.refusal import CONTEXT_OVERFLOW, Refusal
from slime_agl.gateway.request import TurnAnswer, TurnRequest
from slime_agl.gateway.sessions.session import Session
from slime_agl.gateway.turn.conversation import Node
from slime_agl.gateway.turn.own_prompts import TextNode
from slime_agl.gateway.turn.prompt import Prompt
from slime_agl.gateway.turn.sampling import Draft
from slime_agl.gateway.turn.selection import Selection
from slime_agl.lru import LRU
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import LENGTH, STOP, Turn

THINK = "<think>"
# Counters of an attempt; see `_count_reuse`.
HELD, REUSED = "held_tokens", "reused_tokens"
OPENINGS = 1024


class TurnSink(Protocol):
    """Receives every committed turn, on the gateway's thread, before the agent sees the answer. Must not block."""

    def turn_committed(self, rollout_id: str, attempt_id: str, turn: Turn, ledger: Ledger) -> None: ...

    def rewarded(self, rollout_id: str, attempt_id: str, value: float) -> None:
        """The agent posted a reward. value: finite."""
        ...


class Committer:
    """Commits drafts of any session. selection: which turns train; all of them by default."""

    def __init__(
        self, renderer: Renderer, parser: ReplyParser, sink: TurnSink, selection: Selection | None = None
    ) -> None:
        self._renderer, self._parser, self._sink, self._selection = renderer, parser, sink, selection
        self._openings: LRU[bytes, bool] = LRU(OPENINGS)

    def commit_turns(
        self, session: Session, request: TurnRequest, prompt: Prompt, drafts: Sequence[Draft], untrained: str
    ) -> list[TurnAnswer]:
        """Commit each draft as a turn. untrained: why they must not train, '' if they may.

        Restarted attempts at a turn come first. Nobody saw their tokens, so they do not train.
        """
        for gone in [gone for draft in drafts for gone in draft.dropped]:
            self._commit(session, request, prompt, gone, "restarted")
        return [self._commit(session, request, prompt, draft, untrained) for draft in drafts]

    def commit_failed(
        self, session: Session, request: TurnRequest, prompt: Prompt, drafts: Sequence[Draft], error: EngineError
    ) -> Refusal:
        """Commit the partial output of a failed request as untrained; return the refusal for the agent."""
        session.failed(error)
        for gone in [gone for draft in drafts for gone in draft.dropped]:
            self._commit(session, request, prompt, gone, "restarted")
        for draft in drafts:
            if draft.length:
                self._commit(session, request, prompt, draft, "engine_error")
        if not isinstance(error, EngineRejected):
            return Refusal(502, str(error), type="api_error", code="engine_unavailable")
        if not error.overflow:
            return Refusal(400, str(error), code="engine_rejected")
        refusal = Refusal(400, str(error), code=CONTEXT_OVERFLOW)
        refusal.after = prompt.parent
        return refusal

    def refuse(self, session: Session, refusal: Refusal) -> None:
        """Record the turn after which the sequence had no room for a prompt."""
        if refusal.after is not None:
            session.ledger.full.add(refusal.after)

    def _commit(
        self, session: Session, request: TurnRequest, prompt: Prompt, draft: Draft, untrained: str
    ) -> TurnAnswer:
        ledger = session.ledger
        skipped = "" if self._selection is None or untrained else self._selection.skipped(request)
        turn = Turn(
            index=len(ledger.turns),
            parent=prompt.parent,
            new_ids=prompt.new_ids,
            parts=tuple(draft.parts),
            turn_id=f"{request.id_prefix}{session.nonce}{len(ledger.turns):06x}",
            fork="" if skipped else prompt.fork or _branch(ledger, prompt.parent),
            untrained=untrained or skipped,
            model=request.model,
            started=draft.started,
            ended=time.time(),
            engine_seconds=draft.engine_seconds,
            media=prompt.media,
        )
        reply = self._text_reply(turn) if request.prompt is not None else self._reply(turn, request, prompt)
        if isinstance(turn.matched, str) and turn.matched:
            reply = _without_stop(turn.matched, reply)
        ledger.commit(turn)
        if prompt.parent is not None:
            _count_reuse(session, turn, prompt.parent)
        session.texts.keep(turn.index, draft.ids)
        if not untrained:
            self._remember(session, turn, request, prompt, reply)
        self._sink.turn_committed(session.spec.rollout_id, session.spec.attempt_id, turn, ledger)
        prompt_ids = ledger.prompt_ids(turn.index) if request.return_ids else None
        answered = _without_begun(reply, request.begun) if request.begun else reply
        return TurnAnswer(turn, answered, ledger.length(turn.index) - turn.output_length, prompt_ids)

    def _remember(self, session: Session, turn: Turn, request: TurnRequest, prompt: Prompt, reply: Reply) -> None:
        """Index this turn, so that later requests can continue it."""
        node = None
        if request.prompt is None:
            node = _node(turn, request, prompt, reply)
            node.trains = not turn.untrained
            session.conversation.add(node, request.messages)
        elif prompt.start is not None and isinstance(request.prompt, str):
            whole = self._renderer.decode(list(turn.output_ids()))
            parent = prompt.start.node
            added = request.prompt[prompt.start.rest if parent else 0 :]
            session.own_prompts.add(TextNode(index=turn.index, added=added, answered=reply.text, whole=whole), parent)
        session.answered(reply.text, node, trains=not turn.untrained)
        if reply.ill_formed:
            session.count("ill_formed_replies")
        if request.constraint:
            session.count("constrained_turns")

    def _text_reply(self, turn: Turn) -> Reply:
        """Text of a turn without a chat template, minus its stop token."""
        ids = list(turn.output_ids())
        ended = turn.finish == STOP and bool(ids) and ids[-1] in self._renderer.stop_ids | {turn.matched}
        return Reply(self._renderer.decode(ids[:-1] if ended else ids), "", ())

    def _reply(self, turn: Turn, request: TurnRequest, prompt: Prompt) -> Reply:
        if isinstance(turn.matched, int):
            self._renderer.add_stop_id(turn.matched)
        reply = self._parser.parse(
            turn.output_ids(),
            finish=turn.finish,
            tools=request.tools,
            prompt_opens_think=self._opens_think(prompt.new_ids[-8:]),
            begun=prompt.begun,
            # Nine characters, because Mistral's templates reject any other length.
            mint=lambda number: f"c{turn.index:06d}{number:02d}",
        )
        if request.one_call and len(reply.tool_calls) > 1:
            return replace(reply, tool_calls=reply.tool_calls[:1])
        return reply

    def _opens_think(self, end: array) -> bool:
        """Return True if a prompt that ends with these ids opens `<think>`."""
        key = end.tobytes()
        opens = self._openings.get(key)
        if opens is None:
            opens = self._openings[key] = self._renderer.decode(list(end)).rstrip().endswith(THINK)
        return opens


def _count_reuse(session: Session, turn: Turn, parent: int) -> None:
    """Count the tokens that the engine had seen when it was asked, and those of them that it still had cached."""
    ledger, asked = session.ledger, turn.parts[0]
    before = ledger.turns[parent].parts
    if before and before[-1].weight_version == asked.weight_version:  # an update empties the cache
        held = ledger.length(parent)
        session.count(HELD, held)
        session.count(REUSED, min(asked.cached_tokens, held))


def _node(turn: Turn, request: TurnRequest, prompt: Prompt, reply: Reply) -> Node:
    last = next((part.ids[-1] for part in reversed(turn.parts) if len(part.ids)), None)
    unfinished = turn.finish == LENGTH and not (reply.tool_calls or reply.ill_formed) and bool(reply.text)
    return Node(
        index=turn.index,
        parent=prompt.node,
        added=prompt.added,
        reply=reply,
        tools=prompt.tools,
        kwargs=request.template_kwargs,
        last_id=last,
        unfinished=unfinished,
        turn_id=turn.turn_id,
        shown=prompt.shown,
    )


def _branch(ledger: Ledger, parent: int | None) -> str:
    """Say why a turn forks, judged at its commit: a sibling may have been committed since its prompt was made."""
    if all(ledger.turns[index].untrained for index in ledger.children(parent)):
        return ""
    return "new_conversation" if parent is None else "branch"


def _without_stop(matched: str, reply: Reply) -> Reply:
    """Cut the sampled stop string off the reply; agents do not expect to see it."""
    if matched not in reply.text:
        return reply
    return replace(reply, text=reply.text[: reply.text.rindex(matched)], stopped_by=matched)


def _without_begun(reply: Reply, begun: str) -> Reply:
    """Cut off the start of the reply that the agent wrote itself."""
    start = next((start for start in (begun, begun.strip()) if reply.text.startswith(start)), "")
    return replace(reply, text=reply.text[len(start) :]) if start else reply

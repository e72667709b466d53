"""Making a turn: find what it continues, extend those ids, sample, parse, commit."""

from __future__ import annotations

import asyncio
import time
import uuid
from array import array
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from slime_agl.chat.delta import Continuation, Delta, DeltaEncoder, Fork
from slime_agl.chat.messages import Reply, normalise, reply_message
from slime_agl.chat.parse import ReplyParser
from slime_agl.chat.renderer import Renderer
from slime_agl.errors import EngineError, EngineRejected, InvariantError, TemplateError
from slime_agl.gateway.calls import Call
from slime_agl.gateway.conversation import Match, Message, Node
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.request import Answer, TurnRequest
from slime_agl.gateway.sampling import Draft, Sampler
from slime_agl.gateway.session import Session, ids_json, joined_json
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Turn, token_array

THINK = "<think>"


class TurnSink(Protocol):
    """Is told of every committed turn, on the gateway's thread, before the agent sees the answer. Must be quick."""

    def turn_committed(self, rollout_id: str, attempt_id: str, turn: Turn, ledger: Ledger) -> None: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """node: the turn continued, or None. new_ids: what the engine has not seen. length, json: the whole prompt.

    added, normal: the messages since that turn, as sent and as the template takes them.
    """

    node: Node | None
    new_ids: array
    length: int
    json: bytes
    added: tuple[Message, ...]
    normal: tuple[Message, ...]
    fork: str


class TurnMaker:
    """Makes turns for any session, on the gateway's event loop."""

    def __init__(
        self, *, sampler: Sampler, renderer: Renderer, delta: DeltaEncoder, parser: ReplyParser, sink: TurnSink
    ) -> None:
        self._sampler, self._renderer, self._delta, self._parser, self._sink = sampler, renderer, delta, parser, sink
        self._encoders = ThreadPoolExecutor(max_workers=2, thread_name_prefix="agl-encode")

    def close(self) -> None:
        self._encoders.shutdown(wait=False, cancel_futures=True)

    async def serve(self, session: Session, request: TurnRequest, call: Call) -> list[Answer]:
        """Sample `request.n` turns and commit them.

        Raises:
            Refusal: nothing was sampled, or the engine failed; the session goes on.
            InvariantError: the engine was not shown what we hold; the session is broken.
        """
        drafts: list[Draft] = []
        prompt: Prompt | None = None
        try:
            match = session.conversation.match(request.messages, request.tools, request.template_kwargs)
            prompt = await self._prompt(session, request, match)
            params = self._sampler.params(session, request, prompt.length)
            drafts = [Draft(prompt.length, prompt.json) for _ in range(request.n)]
            await _all(
                [
                    self._sampler.sample(session, call, draft, _seeded(params, number))
                    for number, draft in enumerate(drafts)
                ]
            )
            await call.claimed()
            return [self._commit(session, request, prompt, draft, call.refused) for draft in drafts]
        except TemplateError as error:
            raise bad_field("messages", str(error)) from error
        except InvariantError as error:
            session.broken = session.broken or error
            raise
        except EngineError as error:
            session.engine_errors.append(str(error))
            for draft in drafts:
                if draft.length:
                    self._commit(session, request, prompt, draft, "engine_error")
            raise _engine_refusal(error) from error

    async def _prompt(self, session: Session, request: TurnRequest, match: Match) -> Prompt:
        normal = tuple(normalise(list(match.new)))
        fork = match.fork
        if match.node is not None:
            delta = self._continue(match.node, normal, request)
            if isinstance(delta, Delta):
                held = session.held_json(match.node.index)
                new_ids = token_array(delta.ids)
                length = session.ledger.length(match.node.index) + len(new_ids)
                json = joined_json(held, ids_json(new_ids))
                return Prompt(match.node, new_ids, length, json, match.new, normal, fork)
            fork = delta.reason
            normal = (*match.node.context(), reply_message(match.node.reply), *normal)
        new_ids = token_array(await self._encode(list(normal), request))
        return Prompt(None, new_ids, len(new_ids), ids_json(new_ids), tuple(request.messages), normal, fork)

    def _continue(self, node: Node, normal: tuple[Message, ...], request: TurnRequest) -> Delta | Fork:
        kwargs = dict(request.template_kwargs)
        return self._delta.delta(
            Continuation(node.context(), node.reply, list(normal), request.tools, kwargs, node.last_id)
        )

    async def _encode(self, messages: list[Message], request: TurnRequest) -> list[int]:
        """Render and encode a whole prompt, off the loop."""
        loop = asyncio.get_running_loop()
        kwargs = dict(request.template_kwargs)
        render = self._renderer.prompt_ids
        return await loop.run_in_executor(self._encoders, render, messages, request.tools, kwargs)

    def _commit(self, session: Session, request: TurnRequest, prompt: Prompt, draft: Draft, reason: str) -> Answer:
        turn = Turn(
            index=len(session.ledger.turns),
            parent=None if prompt.node is None else prompt.node.index,
            new_ids=prompt.new_ids,
            parts=tuple(draft.parts),
            turn_id=f"chatcmpl-{uuid.uuid4().hex}",
            fork=_fork(session, prompt),
            untrained=reason,
            model=request.model,
            started=draft.started,
            ended=time.time(),
            engine_seconds=draft.engine_seconds,
        )
        reply = self._reply(turn, request, prompt)
        session.ledger.commit(turn)
        session.keep_json(turn.index, draft.json)
        if not reason:
            session.conversation.add(_node(turn, request, prompt, reply))
            session.last_messages, session.last_text = request.messages, reply.text
            session.counters["ill_formed_replies"] += reply.ill_formed
        self._sink.turn_committed(session.spec.rollout_id, session.spec.attempt_id, turn, session.ledger)
        return Answer(turn, reply, prompt.length)

    def _reply(self, turn: Turn, request: TurnRequest, prompt: Prompt) -> Reply:
        if isinstance(turn.matched, int):
            self._renderer.add_stop_id(turn.matched)
        opening = self._renderer.decode(list(prompt.new_ids[-8:]))
        reply = self._parser.parse(
            list(turn.output_ids()),
            finish=turn.finish,
            tools=request.tools,
            prompt_opens_think=opening.rstrip().endswith(THINK),
            # Nine letters, because templates of the Mistral kind take no other length.
            mint=lambda number: f"c{turn.index:06d}{number:02d}",
        )
        if isinstance(turn.matched, str) and turn.matched and turn.matched in reply.text:
            text = reply.text[: reply.text.rindex(turn.matched)]
            return Reply(text, reply.reasoning, reply.tool_calls, reply.ill_formed)
        return reply


def _node(turn: Turn, request: TurnRequest, prompt: Prompt, reply: Reply) -> Node:
    last = next((part.ids[-1] for part in reversed(turn.parts) if len(part.ids)), None)
    return Node(
        turn.index, prompt.node, prompt.added, prompt.normal, reply, request.tools, request.template_kwargs, last
    )


def _fork(session: Session, prompt: Prompt) -> str:
    """Why the turn is not the plain continuation, as things stand at its commit."""
    if prompt.fork:
        return prompt.fork
    if prompt.node is None:
        return "new_conversation" if session.conversation.roots else ""
    return "branch" if prompt.node.children else ""


def _seeded(params: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Siblings of one request under a fixed seed each get a seed of their own."""
    if not number or params.get("sampling_seed") is None:
        return params
    return {**params, "sampling_seed": params["sampling_seed"] + number}


async def _all(coroutines: list[Any]) -> None:
    """Await all; when one fails, end the others before its error travels on."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _engine_refusal(error: EngineError) -> Refusal:
    message = str(error)
    if isinstance(error, EngineRejected):
        overflow = "context length" in message
        return Refusal(400, message, code="context_length_exceeded" if overflow else "engine_rejected")
    return Refusal(502, message, type="api_error", code="engine_unavailable")

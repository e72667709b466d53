"""The road of a turn: a prompt is made, sampled and committed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from slime_agl.errors import EngineError, InvariantError, TemplateError
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.request import Answer, TurnRequest
from slime_agl.gateway.sessions.calls import Call
from slime_agl.gateway.sessions.session import Session, SessionSpec
from slime_agl.gateway.turn.commits import Committer
from slime_agl.gateway.turn.prompts import PromptMaker
from slime_agl.gateway.turn.sampling import Sampler


class TurnMaker:
    """Makes turns for any session, on the gateway's event loop."""

    def __init__(self, prompts: PromptMaker, sampler: Sampler, committer: Committer) -> None:
        self._prompts, self._sampler, self._committer = prompts, sampler, committer

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
        try:
            prompt = await self._prompts.make(session, request)
            drafts = self._sampler.drafts(session, request, prompt, began)
            try:
                await self._sampler.sample(session, call, drafts)
            except EngineError as error:
                raise self._committer.commit_failed(session, request, prompt, drafts, error) from error
            await call.claimed()
            return self._committer.commit_turns(session, request, prompt, drafts, call.refused)
        except TemplateError as error:
            raise _template_refusal(error) from error
        except Refusal as refusal:
            self._committer.refuse(session, refusal)
            raise
        except InvariantError as error:
            session.broke(error)
            raise

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
            prompt = await self._prompts.make(session, request)
            return session.texts.of(prompt.parent).length + len(prompt.new_ids)
        except TemplateError as error:
            raise _template_refusal(error) from error
        except Refusal as refusal:
            self._committer.refuse(session, refusal)
            raise


def _template_refusal(error: TemplateError) -> Refusal:
    return bad_field("messages", str(error))

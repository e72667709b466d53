"""The stages of a turn: make a prompt, sample it, commit it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from slime_agl.errors import EngineError, InvariantError, TemplateError
from slime_agl.gateway.refusal import Refusal, bad_field
from slime_agl.gateway.request import TurnAnswer, TurnRequest
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
        """Token limit of an attempt's sequences, None if unknown."""
        return self._sampler.context(spec)

    async def shows_images(self, session: Session) -> bool:
        """Load the image processor on first use; return False if there is none."""
        return await self._prompts.shows_images(session)

    async def serve(self, session: Session, request: TurnRequest, call: Call) -> list[TurnAnswer]:
        """Sample `request.n` turns and commit them.

        Raises:
            Refusal: nothing was sampled, or the engine failed; the session stays usable.
            InvariantError: the engine read another prompt than the ledger records; the session is broken.
        """
        began = time.time()
        try:
            prompt = await self._prompts.make(session, request)
            drafts = self._sampler.drafts(session, request, prompt, began)
            try:
                await self._sampler.sample(session, call, drafts)
            except EngineError as error:
                raise self._committer.commit_failed(session, request, prompt, drafts, error) from error
            # Whether these turns train depends on whether any client receives them, so wait for that to be known.
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

    async def serve_all(self, session: Session, requests: Sequence[TurnRequest], call: Call) -> list[TurnAnswer]:
        """Serve the requests of one call concurrently; return their answers in order.

        Raises:
            Refusal, InvariantError: see `serve`. All requests end first, so that the turns of the others are kept.
        """
        if len(requests) == 1:
            return await self.serve(session, requests[0], call)
        done = await asyncio.gather(*(self.serve(session, r, call) for r in requests), return_exceptions=True)
        answers: list[TurnAnswer] = []
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
            answers += outcome
        return answers

    async def count(self, session: Session, request: TurnRequest) -> int:
        """Count the prompt tokens of a request without sampling. Raises Refusal."""
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

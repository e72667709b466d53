"""Client of an SGLang server that scores tokens: a teacher."""

from __future__ import annotations

import asyncio
import logging
import uuid
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from slime_agl.engine.base import EngineInfo, EngineRequest
from slime_agl.engine.connections import ConnectionBroke, Connections, NotConnected, Posted
from slime_agl.engine.faults import TryAgain, WrongAnswer, refuse, words_of
from slime_agl.engine.generate import largest_answer, request_body
from slime_agl.engine.id_text import IdText
from slime_agl.engine.retry import Backoff
from slime_agl.engine.router import MOST_WRONG, RouterEngine
from slime_agl.engine.score import UNSCALED, read_ids, read_scores, require_same, score_request, text_request
from slime_agl.errors import EngineError, EngineRejected, TeacherError
from slime_agl.trace.turn import token_array

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ask = Callable[[str], tuple[Sequence[bytes], EngineRequest]]
"""Makes the body of a request with an id, in pieces, and what it asks for."""

AT_ONCE = 64
START_SECONDS = 30.0
# How many tokens the proof samples, and how much their two logprobs may differ in the mean: prefill and decoding round
# differently in bfloat16, while a shift by one token costs nats.
PROOF_TOKENS, PROOF_TOLERANCE = 16, 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a teacher is proven with. text: that the policy's tokenizer encodes to `ids`, without a beginning token.

    context: longest sequence that will be scored, None if unknown.
    """

    text: str
    ids: tuple[int, ...]
    context: int | None


class Scorer:
    """Scores sequences under the model at `url`: a router, or a single SGLang server.

    name: for messages. seconds: deadline of one sequence, retries included. at_once: maximum concurrent requests; the
    server batches those. Belongs to one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        seconds: float,
        at_once: int = AT_ONCE,
        start_seconds: float = START_SECONDS,
        backoff: Backoff | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/generate")
        self._who = f"the teacher {name} at {self.url}" if name else f"the teacher at {self.url}"
        self._seconds, self._start_seconds = seconds, min(start_seconds, seconds)
        self._backoff = backoff or Backoff()
        self._room = asyncio.Semaphore(at_once)
        self._posts = Connections()
        self._info = EngineInfo()

    async def prove(self, probe: Probe) -> None:
        """Check that the teacher answers, has the policy's tokenizer, and scores each token at its own place.

        For the last it samples some tokens and scores them: the logprobs they were sampled with and their scores are
        two computations of the same numbers.

        Raises:
            TeacherError: naming both numbers.
        """
        engine = RouterEngine(self.url, timeout=self._seconds, start_timeout=self._start_seconds, max_retries=3)
        try:
            await engine.start()
        except EngineError as error:
            raise TeacherError(f"{self._who} does not answer: {str(error).partition(';')[0]}") from error
        try:
            self._info = await engine.info()
            self._require_context(probe.context)
            await self._require_tokenizer(probe)
            sampling = {**UNSCALED, "max_new_tokens": PROOF_TOKENS, "ignore_eos": True}
            prompt, rid = IdText().extended(token_array(probe.ids)), uuid.uuid4().hex
            sampled = await engine.generate(
                EngineRequest(prompt=prompt, sampling_params=sampling, rid=rid, session_key=rid)
            )
        except EngineError as error:
            raise TeacherError(f"{self._who} samples nothing, so its scores cannot be proven: {error}") from error
        finally:
            await engine.close()
        if len(sampled.ids) < 2:
            raise TeacherError(f"{self._who} sampled {len(sampled.ids)} of {PROOF_TOKENS} tokens, too few for a proof")
        scores = await self.score([*probe.ids, *sampled.ids], len(sampled.ids))
        self._require_places(np.asarray(sampled.logprobs), np.asarray(scores))

    async def score(self, ids: Sequence[int], count: int) -> array:
        """Return log p of the last `count` of `ids`, each given all before it, at temperature 1.

        Raises:
            TeacherError: no right answer within the deadline, or the server refuses the ids.
        """
        if not 0 < count < len(ids):
            raise TeacherError(f"{count} of {len(ids)} tokens are to be scored; at least one must come before them")

        def request(rid: str) -> tuple[Sequence[bytes], EngineRequest]:
            asked = score_request(ids, count, rid)
            return request_body(asked, rid), asked

        def read(body: bytes, rid: str) -> array:
            return read_scores(body, ids, count, rid, vocab_size=self._info.vocab_size)

        try:
            return await self._ask(request, read)
        except EngineRejected as error:
            raise TeacherError(
                f"{self._who} refuses a Sample of {len(ids)} tokens (HTTP {error.status}): {error}. It must take all "
                "ids of the policy, and prompts as long as its Samples: see its --context-length"
            ) from error

    async def close(self) -> None:
        await self._posts.close()

    async def _ask(self, request: Ask, read: Callable[[bytes, str], T]) -> T:
        failures = wrong = 0
        fault: TryAgain | None = None
        async with self._room:
            try:
                async with asyncio.timeout(self._seconds):
                    while wrong < MOST_WRONG:
                        try:
                            return await self._post(request, read)
                        except TryAgain as again:
                            fault, failures, wrong = again, failures + 1, wrong + isinstance(again, WrongAnswer)
                        if wrong < MOST_WRONG:
                            await asyncio.sleep(self._backoff.pause(failures))
            except TimeoutError as late:
                last = f"; the last of {failures} failures was: {fault}" if fault else ""
                raise TeacherError(
                    f"{self._who} gave no scores within {self._seconds:g} s (agl.teacher_seconds){last}. See its log, "
                    "or allow more time"
                ) from (fault or late)
        raise TeacherError(f"{self._who} gave {wrong} wrong answers, the last time: {fault}") from fault

    async def _post(self, request: Ask, read: Callable[[bytes, str], T]) -> T:
        rid = f"teach-{uuid.uuid4().hex}"
        body, asked = request(rid)

        def checked(answer: Posted) -> T:
            if answer.status != 200:
                refuse(answer.status, words_of(answer.body), asked)
            return read(answer.body, rid)

        try:
            return await self._posts.post(f"{self.url}/generate", body, {}, read=checked, largest=largest_answer(asked))
        except (NotConnected, ConnectionBroke) as error:
            raise TryAgain(f"{type(error).__name__}: {error}") from error

    def _require_context(self, longest: int | None) -> None:
        limit = self._info.context_length
        # The server takes prompts that leave room for a token.
        if longest is not None and limit is not None and longest >= limit:
            raise TeacherError(
                f"{self._who} takes prompts below {limit} tokens, and --rollout-max-context-len lets Samples have "
                f"{longest}; start it with --context-length {longest + 1} or more, or lower --rollout-max-context-len"
            )

    async def _require_tokenizer(self, probe: Probe) -> None:
        def request(rid: str) -> tuple[Sequence[bytes], EngineRequest]:
            return text_request(probe.text, rid), score_request([*probe.ids], 1, rid)

        try:
            own = await self._ask(request, read_ids)
        except EngineRejected as error:
            logger.warning(
                "%s encodes no text, so its tokenizer was not compared with the policy's: %s", self._who, error
            )
            return
        tail = own[len(own) - len(probe.ids) :]  # a server may add a beginning token
        try:
            if len(tail) != len(probe.ids):
                raise WrongAnswer("", "")
            require_same(tail, probe.ids, "", self._info.vocab_size)
        except WrongAnswer:
            raise TeacherError(
                f"{self._who} has another tokenizer: it encodes {probe.text!r} to {len(own)} ids, {_some(own)}, the "
                f"policy's to {len(probe.ids)}, {_some(probe.ids)}; a teacher must share the policy's vocabulary"
            ) from None

    def _require_places(self, sampled: np.ndarray, scores: np.ndarray) -> None:
        difference = float(np.abs(sampled - scores).mean())
        if difference <= PROOF_TOLERANCE:
            return
        shifted = min(float(np.abs(sampled[1:] - scores[:-1]).mean()), float(np.abs(sampled[:-1] - scores[1:]).mean()))
        hint = f"; shifted by one token they differ by {shifted:.3f}" if shifted < difference else ""
        raise TeacherError(
            f"{self._who} scores {len(scores)} tokens otherwise than it sampled them: the logprobs differ by "
            f"{difference:.3f} in the mean, {PROOF_TOLERANCE} is allowed{hint}. Its scores would teach something else"
        )


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:12])) + (" ..." if len(ids) > 12 else "")

"""An engine that samples nothing: it answers from a record."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from slime_agl.engine.base import EngineInfo, EngineRequest
from slime_agl.engine.generate import nothing_sampled
from slime_agl.errors import EngineFailure, EngineRejected, EngineUnavailable
from slime_agl.rerun.script import Piece, Script
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Sampled

PATIENCE_SECONDS = 5.0
# Passes of the event loop that the gateway needs to commit a turn after its answer.
COMMIT_PASSES = 8
NO_MESSAGE = EngineFailure("the engine failed when this was recorded")


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """A prompt without a recorded answer. attempt: its number, from 0. given: turns requested before, by index."""

    attempt: int
    ids: array
    images: tuple[str, ...]
    given: frozenset[int]


class RecordedEngine:
    """`slime_agl.engine.base.Engine` over the record of one execution at a time.

    Call `load` with an execution, then `next_attempt` before each attempt. Answers are released in recorded order, as
    far as the agent requests them, so that turns get the same numbers. An unrecorded prompt is rejected and added to
    `unrecorded`. patience: seconds without progress that an answer waits for earlier ones; then the order is abandoned.
    """

    def __init__(self, info: EngineInfo, *, patience: float = PATIENCE_SECONDS) -> None:
        self._info, self._patience = info, patience
        self._aborts: dict[str, asyncio.Event] = {}
        self.load([])

    def load(self, attempts: Sequence[tuple[Ledger, Sequence[EngineFailure]]]) -> None:
        """Answer from these attempts, in order: their turns, and their engine failures."""
        self.scripts = [Script(ledger, errors) for ledger, errors in attempts]
        self.unrecorded: list[Unrecorded] = []
        self.attempts = 0
        self._in_order = True
        self._moved = asyncio.Event()

    def next_attempt(self) -> None:
        """Start the next attempt."""
        self.attempts += 1
        self._in_order = True

    @property
    def given(self) -> int:
        """Number of turns requested so far."""
        return sum(len(script.given) for script in self.scripts)

    async def start(self) -> None:
        """Nothing to start."""

    async def info(self) -> EngineInfo:
        return self._info

    async def generate(self, request: EngineRequest) -> Sampled:
        """Return the recorded answer to exactly this prompt.

        Raises:
            EngineRejected: there is none, or the engine rejected the request during the recorded run.
            EngineUnavailable: the engine failed during the recorded run.
        """
        aborted = self._aborts[request.rid] = asyncio.Event()
        try:
            script = self.scripts[self.attempts - 1]
            piece = self._piece(script, request)
            if piece.unsent:
                await aborted.wait()
            elif piece.last and not await self._in_turn(script, piece, aborted):
                return nothing_sampled(request)
            if piece.failed:
                raise _failure(script)
            return piece.part
        finally:
            del self._aborts[request.rid]

    async def abort(self, rid: str) -> None:
        if rid in self._aborts:
            self._aborts[rid].set()
            self._move()

    async def abort_all_of(self, origin: str) -> None:
        """Nobody else has requests here."""

    async def reported_load(self) -> None:
        """Not reported: a record is no engine."""

    async def quiet(self) -> None:
        """Nothing to wait for."""

    async def close(self) -> None:
        """Nothing to close."""

    def _piece(self, script: Script, request: EngineRequest) -> Piece:
        ids = array("i", orjson.loads(b"[%b]" % b"".join(request.prompt.pieces)))
        images = tuple(request.extra.get("image_data", ()))
        piece = script.take(ids, images, request.model)
        if piece is not None:
            self._move()
            return piece
        if script.engine_errors:
            raise _failure(script)
        self.unrecorded.append(Unrecorded(self.attempts - 1, ids, images, frozenset(script.given)))
        self._in_order = False
        self._move()
        raise EngineRejected(
            f"the record has no answer to this prompt of {len(ids)} tokens: the agent did not send it during the "
            "recorded run"
        )

    async def _in_turn(self, script: Script, piece: Piece, aborted: asyncio.Event) -> bool:
        """Wait until all turns answered before this one are answered. Return False if the request is aborted first."""
        while self._in_order and script.ahead(piece.turn.index) and not aborted.is_set():
            try:
                async with asyncio.timeout(self._patience):
                    await self._moved.wait()
            except TimeoutError:
                # An earlier turn is not requested, or only after long work: abandon the order.
                self._in_order = False
                self._move()
        if aborted.is_set():
            return False
        for _ in range(COMMIT_PASSES):
            await asyncio.sleep(0)
        script.released.add(piece.turn.index)
        self._move()
        return True

    def _move(self) -> None:
        """Wake all waiters."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def _failure(script: Script) -> EngineRejected | EngineUnavailable:
    failure = script.engine_errors.popleft() if script.engine_errors else NO_MESSAGE
    return (EngineRejected if failure.rejected else EngineUnavailable)(failure.message)

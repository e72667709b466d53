"""An engine that samples nothing: it answers with what a record holds."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from slime_agl.engine.base import EngineInfo, EngineRequest
from slime_agl.engine.generate import nothing_sampled
from slime_agl.errors import EngineRejected, EngineUnavailable
from slime_agl.rerun.script import Piece, Script
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Sampled

PATIENCE_SECONDS = 5.0
# Passes of the event loop in which a turn is committed once its answer is there.
COMMIT_PASSES = 8


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """A prompt that the record does not answer. attempt: its number, from 0. given: the attempt's turns asked before."""

    attempt: int
    ids: array
    images: tuple[str, ...]
    given: frozenset[int]


class RecordedEngine:
    """`slime_agl.engine.base.Engine` over the record of one execution at a time.

    `load` it with an execution and call `next_attempt` before each of its recorded attempts. Answers leave in the order of the
    record, as far as the agent asks for them, so that turns are numbered as they were. A prompt that is not recorded is
    refused for good, and stands in `unrecorded`. patience: seconds that an answer waits for earlier ones while nothing
    moves, before the order is given up.
    """

    def __init__(self, info: EngineInfo, *, patience: float = PATIENCE_SECONDS) -> None:
        self._info, self._patience = info, patience
        self._aborts: dict[str, asyncio.Event] = {}
        self.load([])

    def load(self, attempts: Sequence[tuple[Ledger, Sequence[str]]]) -> None:
        """Answer from these attempts, in turn: their turns, and what they were told where the engine failed."""
        self.scripts = [Script(ledger, errors) for ledger, errors in attempts]
        self.unrecorded: list[Unrecorded] = []
        self.attempts = 0
        self._in_order = True
        self._moved = asyncio.Event()

    def next_attempt(self) -> None:
        """The agent begins anew."""
        self.attempts += 1
        self._in_order = True

    @property
    def given(self) -> int:
        """Turns that were asked for so far."""
        return sum(len(script.given) for script in self.scripts)

    async def start(self) -> None:
        """Nothing to start."""

    async def info(self) -> EngineInfo:
        return self._info

    async def generate(self, request: EngineRequest) -> Sampled:
        """The recorded answer to this very prompt.

        Raises:
            EngineRejected: there is none; or the engine refused the request when it was recorded.
            EngineUnavailable: the engine failed when it was recorded.
        """
        aborted = self._aborts[request.rid] = asyncio.Event()
        try:
            script = self.scripts[self.attempts - 1]
            piece = self._piece(script, request)
            if piece.unshown:
                await aborted.wait()
            elif piece.last and not await self._turn_has_come(script, piece, aborted):
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

    async def quiet(self) -> None:
        """Nothing runs by itself here."""

    async def close(self) -> None:
        """Nothing to close."""

    def _piece(self, script: Script, request: EngineRequest) -> Piece:
        ids = array("i", map(int, request.ids_json.split(b",") if request.ids_json else ()))
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
            f"this rerun has no answer to a prompt of {len(ids)} tokens: the agent did not ask it when the run was "
            "recorded"
        )

    async def _turn_has_come(self, script: Script, piece: Piece, aborted: asyncio.Event) -> bool:
        """Wait until what was answered before has been answered. False when the request was aborted first."""
        while self._in_order and script.ahead(piece.turn.index) and not aborted.is_set():
            try:
                async with asyncio.timeout(self._patience):
                    await self._moved.wait()
            except TimeoutError:
                # An earlier turn is not asked for, or only after long work: the order is given up.
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
        """Let those who wait look again."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def _failure(script: Script) -> EngineRejected | EngineUnavailable:
    message = script.engine_errors.popleft() if script.engine_errors else "the engine failed when this was recorded"
    return (EngineRejected if "refused request" in message else EngineUnavailable)(message)

"""All attempts of a gateway: opened before their agent starts, sealed after it ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Hashable, Sequence

from slime_agl.engine.base import Engine
from slime_agl.errors import SlimeAglError
from slime_agl.gateway.bodies import Bounds
from slime_agl.gateway.door import may_enter, mint_key
from slime_agl.gateway.refusal import sealed, unknown_attempt, wrong_key
from slime_agl.gateway.request import TurnAnswer, TurnRequest
from slime_agl.gateway.sessions.calls import Call, Mark
from slime_agl.gateway.sessions.doorman import Doorman, store_unreachable
from slime_agl.gateway.sessions.gate import Gate
from slime_agl.gateway.sessions.session import SealedSession, Session, SessionSpec
from slime_agl.gateway.turn.maker import TurnMaker
from slime_agl.lru import LRU

logger = logging.getLogger(__name__)

TOMBSTONES = 50_000
ABORT_AGAIN_SECONDS = 1.0
ABORTS_BEFORE_CANCEL = 30
PARK_AGAIN_SECONDS = 0.01

Name = tuple[str, str]


class Sessions:
    """Registry of attempts. Belongs to the gateway's event loop.

    doorman: knows the attempts that begin elsewhere, None if all are opened before their agent starts.
    """

    def __init__(
        self, maker: TurnMaker, engine: Engine, *, keys_required: bool, doorman: Doorman | None = None
    ) -> None:
        self._maker, self._engine, self._keys_required = maker, engine, keys_required
        self.doorman = doorman
        self._open: dict[Name, Session] = {}
        self._ended: LRU[Name, None] = LRU(TOMBSTONES)
        self._aborting: set[asyncio.Future[None]] = set()
        self._gates: dict[str, Gate] = {}
        self._bounds: dict[int | None, Bounds] = {}
        self.counters: Counter[str] = Counter()
        self.ended = self.ended_tokens = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def in_flight(self) -> int:
        """Number of calls in flight, over all attempts."""
        return sum(len(session.calls) for session in self._open.values())

    def total(self, name: str) -> int:
        """A counter of attempts, over those that ended and those that are open."""
        return self.counters[name] + sum(session.counters[name] for session in self._open.values())

    def open(self, spec: SessionSpec) -> str:
        """Admit an attempt; return its key. Raises SlimeAglError if it was opened before."""
        name = (spec.rollout_id, spec.attempt_id)
        if name in self._open or name in self._ended:
            raise SlimeAglError(f"attempt {spec.attempt_id} of rollout {spec.rollout_id} was opened before")
        tokens = self._maker.context(spec)
        bounds = self._bounds.get(tokens) or self._bounds.setdefault(tokens, Bounds(tokens))
        session = Session(spec, spec.key or mint_key(), self._gate(spec.lane), bounds)
        self._open[name] = session
        return session.key

    async def admit(self, doorman: Doorman, rollout_id: str, attempt_id: str, key: str) -> None:
        """Have the doorman open the session of a request, if there is none yet.

        Raises:
            Refusal: 401 for the key of another rollout, 409 for an attempt that is over or superseded, 503 if the
                doorman cannot tell.
        """
        name = (rollout_id, attempt_id)
        if name in self._open or name in self._ended:
            return
        found = await doorman.admit(
            rollout_id, attempt_id, lambda own: may_enter(key, own, required=self._keys_required)
        )
        if found == "wrong_key":
            raise wrong_key()
        if found == "unreachable":
            raise store_unreachable()
        if found == "over":
            self._ended[name] = None

    def enter(self, rollout_id: str, attempt_id: str, key: str, *, placeholder: bool = True) -> Session:
        """Return the session of a request. placeholder: accept any key we did not mint, unless keys are required.

        Raises:
            Refusal: 404 for an unknown attempt, 409 for one that ended, 401 for the key of another.
        """
        session = self._open.get((rollout_id, attempt_id))
        if session is None:
            ended = (rollout_id, attempt_id) in self._ended
            self.counters["late_requests"] += ended
            raise (sealed if ended else unknown_attempt)(rollout_id, attempt_id)
        if not may_enter(key, session.key, required=self._keys_required or not placeholder):
            raise wrong_key()
        if session.sealed:
            self.counters["late_requests"] += 1
            raise sealed(rollout_id, attempt_id)
        return session

    def refused(self, rollout_id: str, attempt_id: str, words: str, *, turn: bool) -> None:
        """Record a refused request of an attempt, if it is open; see `Session.refused`."""
        session = self._open.get((rollout_id, attempt_id))
        if session is not None and not session.sealed:
            session.refused(words, turn=turn)

    def call(self, session: Session, requests: Sequence[TurnRequest], digest: Hashable, mark: Mark) -> Call:
        """Start serving the requests of a call, or join the call that they repeat. Counts the caller as waiting.

        Raises:
            Refusal: 422, see `CallTable.find`.
        """
        call = session.calls.find(digest, mark)
        if call is not None:
            call.tries = max(call.tries, mark.tries)
            session.count("joined_retries")
        else:
            serve = self._maker.serve_all if self.doorman is None else self._numbered
            call = session.calls.start(digest, mark, lambda call: serve(session, requests, call))
        call.arrive()
        return call

    async def _numbered(self, session: Session, requests: Sequence[TurnRequest], call: Call) -> list[TurnAnswer]:
        """Serve a call whose turns need places among spans that others write."""
        doorman, spec = self.doorman, session.spec
        assert doorman is not None
        turns = sum(request.n for request in requests)
        numbering = asyncio.ensure_future(doorman.number(spec.rollout_id, spec.attempt_id, turns))
        try:
            return await self._maker.serve_all(session, requests, call)
        finally:
            await numbering
            doorman.left(spec.rollout_id, spec.attempt_id)

    async def shows_images(self, session: Session) -> bool:
        """Load the image processor on first use; return False if the model does not accept images."""
        return await self._maker.shows_images(session)

    async def count(self, session: Session, request: TurnRequest) -> int:
        """Count the prompt tokens of a request without sampling. Raises Refusal."""
        return await self._maker.count(session, request)

    def give_up(self, call: Call) -> None:
        """Abandon a call that no client waits for: abort its engine requests, keep their tokens untrained."""
        call.give_up("abandoned")
        for rid in call.rids:
            task = asyncio.ensure_future(self._engine.abort(rid))
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    async def park(self, lane: str) -> None:
        """Park the turns of a lane: abort those at the engine, let none start, and wait until none is left.

        Parked turns keep their partial output and their waiting clients; later turns wait too.
        """
        self._gate(lane).close()
        while rids := [rid for call in self._in_flight(lane) for rid in call.rids]:
            await asyncio.gather(*(self._engine.abort(rid) for rid in rids))
            await asyncio.sleep(PARK_AGAIN_SECONDS)

    def resume(self, lane: str) -> None:
        """Resume the parked turns of a lane."""
        self._gate(lane).open()

    def _gate(self, lane: str) -> Gate:
        return self._gates.setdefault(lane, Gate())

    def _in_flight(self, lane: str) -> list[Call]:
        sessions = [session for session in self._open.values() if session.spec.lane == lane]
        return [call for session in sessions for call in session.calls.in_flight()]

    async def seal(self, rollout_id: str, attempt_id: str) -> SealedSession:
        """End an attempt: refuse new requests, abort those in flight, and wait until the engine is done with them.

        Raises:
            SlimeAglError: the attempt was never opened, or is already sealed.
        """
        name = (rollout_id, attempt_id)
        session = self._open.get(name)
        if session is None or session.sealed:
            raise SlimeAglError(f"attempt {attempt_id} of rollout {rollout_id} is not open, it cannot be sealed")
        session.sealed = True
        try:
            await self._quiet(session)
        finally:
            del self._open[name]
            self._ended[name] = None
        self.counters.update(session.counters)
        if session.ledger.turns:
            self.ended += 1
            self.ended_tokens += sum(len(turn.new_ids) + turn.output_length for turn in session.ledger.turns)
        return session.leave()

    async def _quiet(self, session: Session) -> None:
        for call in session.calls.in_flight():
            call.give_up("sealed")
        for _ in range(ABORTS_BEFORE_CANCEL):
            tasks = session.calls.tasks()
            if not tasks:
                return
            rids = [rid for call in session.calls.in_flight() for rid in call.rids]
            await asyncio.gather(*(self._engine.abort(rid) for rid in rids))
            await asyncio.wait(tasks, timeout=ABORT_AGAIN_SECONDS)
        tasks = session.calls.tasks()
        logger.warning(
            "%s: %d calls did not end after %d aborts, dropping their connections",
            session.ledger,
            len(tasks),
            ABORTS_BEFORE_CANCEL,
        )
        session.count("dropped_calls", len(tasks))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Seal all open attempts."""
        for name in list(self._open):
            if not self._open[name].sealed:
                await self.seal(*name)
        if self._aborting:
            await asyncio.gather(*self._aborting, return_exceptions=True)

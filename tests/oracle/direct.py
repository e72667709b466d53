"""Run programs on gateway sessions: the product's own HTTP, turns, ledger and Samples, without slime's loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.audit import audit
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.config import GatewayConfig
from slime_agl.engine.retry import Backoff
from slime_agl.engine.router import RouterEngine
from slime_agl.execution import Execution
from slime_agl.executor.samples import SampleBuilder
from slime_agl.gateway.http.server import Gateway, GatewayParts
from slime_agl.gateway.sessions import calls
from slime_agl.gateway.sessions.session import SealedSession, SessionSpec
from slime_agl.gateway.turn import sampling
from slime_agl.host import RolloutArgs, Sample, default_args
from slime_agl.trace.segments import account, segments
from tests.oracle.checker import Findings, Record, check
from tests.oracle.engine import OracleEngine
from tests.oracle.families import Family
from tests.oracle.programs import MOST_FAILURES, Door, Program

ARGS = RolloutArgs.read(default_args())
SIDE_BY_SIDE = 8
MOST_STEPS = 14
FOREVER = 1000.0


class Nobody:
    def turn_committed(self, *_: Any) -> None:
        pass

    def rewarded(self, *_: Any) -> None:
        pass


async def run_family(family: Family, numbers: range, seed: int, *, history: str = "append") -> Findings:
    """Run programs, eight at a time; in every other batch, clients may return after a disconnect."""
    found = Findings()
    with OracleEngine() as engine, _gateway(family, engine, history) as gateway:
        engine.language = family
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            for at in range(numbers.start, numbers.stop, SIDE_BY_SIDE):
                batch = range(at, min(at + SIDE_BY_SIDE, numbers.stop))
                grace = (at // SIDE_BY_SIDE) % 2 == 0
                with patience(FOREVER if grace else 0.0):
                    done = await asyncio.gather(
                        *(_attempt(gateway, engine, http, family, seed, n, grace) for n in batch)
                    )
                record = Record(engine)
                for program, left in done:
                    one = _judged(record, program, left, family)
                    one.faults = [f"{family.name}, seed {seed}, program {program.number}: {f}" for f in one.faults]
                    found.add(one)
        found.faults += engine.surprises
        await asyncio.to_thread(gateway.stop)
    return found


async def _attempt(
    gateway: Gateway,
    engine: OracleEngine,
    http: aiohttp.ClientSession,
    family: Family,
    seed: int,
    number: int,
    grace: bool,
) -> tuple[Program, SealedSession]:
    rng = random.Random(f"{seed} {family.name} {number}")
    name = f"at-{number}"
    key = await gateway.open(
        SessionSpec(
            rollout_id="ro",
            attempt_id=name,
            session_key=f"session-{number}",
            sampling=ARGS.sampling_params(),
            response_limit=4096,
        )
    )
    door = Door(http, f"{gateway.url}/rollout/ro/attempt/{name}/v1", key, grace)
    program = Program(number, rng, engine, door, family)
    await program.run(rng.randrange(1, MOST_STEPS))
    open_call = await program.leave_one_open() if rng.random() < 0.2 else None
    left = await gateway.seal("ro", name)
    if open_call is not None:
        await open_call
    return program, left


def _judged(record: Record, program: Program, left: SealedSession, family: Family) -> Findings:
    parts = segments(left.ledger)
    told = account(left.ledger, parts)
    execution = Execution(
        rollout_id="ro",
        attempt_id=left.ledger.attempt_id,
        task=None,
        reward=None,
        final_text="",
        messages=[],
        spans=(),
        failure="",
        error="",
        ledger=left.ledger,
        segments=parts,
        account=told,
        counters=left.counters,
        seconds=0.0,
    )
    samples = SampleBuilder(ARGS, family.renderer).build(Sample(), execution, 0)
    found = check(record, program, samples, told.untrained, told.forks)
    if left.broken is not None:
        found.faults.append(f"the session is broken: {left.broken}")
    return found


@contextmanager
def _gateway(family: Family, engine: OracleEngine, history: str) -> Iterator[Gateway]:
    renderer = family.renderer
    parts = GatewayParts(
        engine=RouterEngine(engine.url, max_retries=MOST_FAILURES - 1, backoff=Backoff(0.0, 1.0, 0.0)),
        renderer=renderer,
        delta=DeltaEncoder(renderer, audit(renderer), history=history),
        parser=ReplyParser(renderer),
        sink=Nobody(),
        model="policy",
        policy="trainer",
    )
    gateway = Gateway(GatewayConfig(), parts)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


@contextmanager
def patience(grace: float) -> Iterator[None]:
    """Set how long the gateway waits for disconnected clients, and between the parts of an interrupted turn."""
    before = calls.GRACE_SECONDS, sampling.FIRST_PAUSE
    calls.GRACE_SECONDS, sampling.FIRST_PAUSE = grace, 0.0
    try:
        yield
    finally:
        calls.GRACE_SECONDS, sampling.FIRST_PAUSE = before

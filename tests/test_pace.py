"""`agl.runners.max_concurrency: auto`: the law, the places, and a run whose engine says how it is."""

from __future__ import annotations

import asyncio

import pytest

from slime_agl.config import Config
from slime_agl.engine.base import Load, Pressure
from slime_agl.errors import ConfigError
from slime_agl.pace import Law, Pace, Room, Rooms
from tests.conftest import flat

GOOD = Pressure(load=Load(10, 0, 0.5), held=100_000, reused=99_000)
LOST = Pressure(load=Load(10, 0, 0.9), held=100_000, reused=50_000)


def told(load: Load | None, share: float = 0.99) -> Pressure:
    return Pressure(load=load, held=100_000, reused=int(100_000 * share))


def test_the_limit_grows_while_the_engine_has_room_and_somebody_waits():
    law = Law(64)
    assert law.update(GOOD, busy=64, waiting=9) == 72
    assert law.update(GOOD, busy=72, waiting=0) == 72, "nobody waits"
    assert law.update(GOOD, busy=50, waiting=9) == 72, "there are free places"
    assert law.update(GOOD, busy=72, waiting=9) == 81
    assert (law.raised, law.lowered) == (2, 0)


@pytest.mark.parametrize(
    "reading",
    [told(Load(10, 3, 0.5)), told(Load(10, 0, 0.96)), told(None), told(Load(10, 0, 0.5), 0.9)],
    ids=["requests wait", "tokens are used up", "no load is reported", "some of the cache is lost"],
)
def test_the_limit_stays_when_more_would_not_help(reading):
    law = Law(64)
    law.update(GOOD, busy=64, waiting=0)
    assert law.update(reading, busy=64, waiting=9) == 64


def test_the_limit_falls_once_for_each_time_that_the_cache_is_lost():
    law = Law(64)
    law.update(GOOD, busy=64, waiting=0)
    assert law.update(LOST, busy=64, waiting=9) == 48
    assert law.update(LOST, busy=60, waiting=9) == 48, "what ran before has not ended yet"
    assert law.update(LOST, busy=48, waiting=9) == 36
    assert law.lowered == 2


def test_the_limit_falls_from_what_runs_where_fewer_run_than_may():
    law = Law(64)
    law.update(GOOD, busy=64, waiting=0)
    assert law.update(LOST, busy=20, waiting=0) == 15


def test_an_engine_without_a_prefix_cache_is_not_starved_for_it():
    law = Law(64)
    for _ in range(20):
        law.update(Pressure(load=Load(60, 0, 0.5), held=100_000, reused=0), busy=law.limit, waiting=9)
    assert law.limit > 64 and law.lowered == 0


def test_few_tokens_say_nothing():
    law = Law(64)
    law.update(GOOD, busy=64, waiting=0)
    assert law.update(Pressure(load=Load(1, 0, 0.1), held=1000, reused=0), busy=64, waiting=9) == 72


def test_the_limit_has_bounds():
    law = Law(64)
    for _ in range(100):
        law.update(GOOD, busy=law.limit, waiting=9)
    assert law.limit == 512
    for _ in range(100):
        law.update(LOST, busy=law.limit, waiting=9)
    assert law.limit == 4


async def test_a_room_lets_in_as_many_as_its_limit_in_their_order():
    room, inside, doors = Room(2), [], {}

    async def guest(name: int) -> None:
        doors[name] = asyncio.Event()
        async with room.place():
            inside.append(name)
            await doors[name].wait()
            inside.remove(name)

    guests = [asyncio.create_task(guest(name)) for name in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert inside == [0, 1] and (room.busy, room.waiting) == (2, 3)
    guests[2].cancel()
    room.resize(3)
    await asyncio.gather(guests[2], return_exceptions=True)
    await asyncio.sleep(0)
    assert inside == [0, 1, 3] and (room.busy, room.waiting) == (3, 1)
    room.resize(1)
    doors[0].set()
    await guests[0]
    await asyncio.sleep(0)
    assert inside == [1, 3] and room.waiting == 1, "nobody comes in before enough have left"
    for name in (1, 3):
        doors[name].set()
    await asyncio.gather(guests[1], guests[3])
    await asyncio.sleep(0)
    assert inside == [4]
    doors[4].set()
    await guests[4]
    assert (room.busy, room.waiting) == (0, 0)


async def test_a_guest_cancelled_as_it_is_let_in_leaves_its_place():
    room = Room(1)
    async with room.place():
        waiting = asyncio.create_task(room.place().__aenter__())
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (room.busy, room.waiting) == (0, 0)


async def test_lanes_have_places_of_their_own():
    rooms = Rooms(1)
    async with rooms.place("train"), rooms.place("val"):
        assert rooms.demand() == (2, 0)
    assert rooms.demand() == (0, 0)


class Driven:
    """A pace whose periods are ended by hand."""

    def __init__(self, law: Law, readings: list[Pressure | Exception]) -> None:
        self.readings, self.applied, self.busy = readings, [], (64, 9)
        self._next, self._seen = asyncio.Event(), asyncio.Event()
        self.pace = Pace(law, read=self._read, demand=lambda: self.busy, apply=self.applied.append, pause=self._pause)

    async def _read(self) -> Pressure:
        reading = self.readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading

    async def _pause(self) -> None:
        self._seen.set()
        await self._next.wait()
        self._next.clear()

    async def period(self) -> None:
        """One period."""
        self._seen.clear()
        self._next.set()
        await self._seen.wait()


async def test_a_pace_reads_what_is_new_and_outlives_failures():
    load = Load(10, 0, 0.5)
    totals = [(100_000, 99_000), (200_000, 198_000), (0, 0), (300_000, 208_000)]
    readings = [Pressure(load=load, held=held, reused=reused) for held, reused in totals]
    driven = Driven(Law(64), [*readings[:2], OSError("gone"), readings[3]])
    driven.pace.go_on()
    await asyncio.sleep(0)
    for _ in range(4):
        await driven.period()
        driven.busy = (driven.pace.law.limit, 9)
    assert driven.applied == [72, 81, 60], "the last 100,000 tokens were found again in a tenth"
    await driven.pace.close()


async def test_a_parked_pace_reads_nothing():
    driven = Driven(Law(64), [])
    driven.pace.go_on()
    await asyncio.sleep(0)
    driven.pace.stay()
    await driven.period()
    driven.busy = (0, 9)
    driven.pace.go_on()
    await driven.period()
    assert driven.applied == []
    await driven.pace.close()


def test_the_setting_is_checked():
    assert Config.read({"agent": "a.b", "runners": {"max_concurrency": "auto"}}).runners.follows
    with pytest.raises(ConfigError, match=r"max_concurrency is 'fast'.*auto"):
        Config.read({"agent": "a.b", "runners": {"max_concurrency": "fast"}})


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_follows_its_engine(run_rollout, fake_sglang, monkeypatch, workers):
    """Two executions may begin, and end only with a third: the engine reports room, so that it begins."""
    monkeypatch.setattr("slime_agl.pace.PERIOD_SECONDS", 0.05)
    fake_sglang.answer_with(lambda request: "ok")
    agl = {"runners": {"max_concurrency": "auto"}, "workers": {"count": workers, "slots": 8}}
    rows = [f"row {at}" for at in range(6)]
    output = run_rollout("tests.workers.agents.together", rows, agl=agl, sglang_server_concurrency=2)
    assert [sample.reward for sample in flat(output.samples)] == [1.0] * 6
    assert output.metrics["rollout/agl/concurrency"] > 2
    assert output.metrics["rollout/agl/concurrency_raised"] >= 1

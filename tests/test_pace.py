"""`agl.runners.max_concurrency: auto`: the law, the places, and a run whose engine says how it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from bench.concurrency import LONGEST, USUAL, WORKS, Simulation

from slime_agl.config import Config
from slime_agl.engine.base import Load, Pressure
from slime_agl.errors import ConfigError
from slime_agl.pace import Law, Pace, Room, Rooms
from tests.conftest import flat


def told(running: int = 30, waiting: int = 0, *, capacity: int | None = None, share: float = 0.99, ended: int = 64):
    """A reading: requests at the engine, what fits, how much of 100,000 tokens was still cached, executions of 1,000
    tokens that ended.
    """
    load = Load(running, waiting, capacity=capacity)
    return Pressure(load=load, held=100_000, reused=int(100_000 * share), ended=ended, ended_tokens=1000 * ended)


def begun(limit: int, **more: Any) -> Law:
    """A law that has read once and has this limit."""
    law = Law(4 * limit)
    assert law.update(told(**more), busy=limit, waiting=0) == limit
    return law


def test_the_first_limit_is_what_fits_at_the_longest():
    assert Law(256, longest=10_000).update(told(capacity=200_000, ended=0), busy=5, waiting=9) == 20
    assert Law(256, longest=10_000).update(told(capacity=5_000_000, ended=0), busy=5, waiting=9) == 64
    assert Law(256).update(told(capacity=200_000, ended=0), busy=5, waiting=9) == 64


def test_the_limit_doubles_up_to_what_fits_once_lengths_are_known():
    law = begun(64)
    assert law.update(told(capacity=200_000, ended=0), busy=64, waiting=9) == 128
    assert law.update(told(capacity=200_000, ended=0), busy=128, waiting=0) == 128, "nobody waits"
    assert law.update(told(capacity=200_000, ended=0), busy=100, waiting=9) == 128, "there are free places"
    assert law.update(told(capacity=200_000, ended=0), busy=128, waiting=9) == 200
    assert (law.raised, law.lowered) == (2, 0)


def test_lengths_are_those_of_what_ended_lately():
    law = begun(64)
    for _ in range(20):
        longer = Pressure(load=Load(30, 0, capacity=200_000), ended=10, ended_tokens=20_000)
        law.update(longer, busy=64, waiting=0)
    assert law.update(told(capacity=200_000, ended=0), busy=64, waiting=9) == 100


@pytest.mark.parametrize(("running", "limit"), [(7, 72), (9, 64)])
def test_beyond_what_fits_the_limit_grows_while_agents_are_at_their_tools(running, limit):
    law = begun(64, running=running)
    for _ in range(9):
        law.update(told(running=running, capacity=64_000, ended=0), busy=64, waiting=0)
    assert law.update(told(running=running, capacity=64_000), busy=64, waiting=9) == limit


def test_beyond_what_fits_the_limit_waits_for_what_its_change_did():
    law = begun(64, running=1)
    assert law.update(told(running=1, capacity=64_000, ended=0), busy=64, waiting=9) == 72
    assert law.update(told(running=1, capacity=64_000, ended=17), busy=72, waiting=9) == 72
    assert law.update(told(running=1, capacity=64_000, ended=1), busy=72, waiting=9) == 81


def test_the_limit_falls_to_what_fits_when_a_busy_engine_evicts():
    law = begun(64)
    assert law.update(told(share=0.5, capacity=50_000), busy=64, waiting=9) == 50
    assert law.update(told(share=0.5, capacity=50_000), busy=60, waiting=9) == 50, "more run than may"
    assert law.update(told(share=0.5, capacity=50_000), busy=50, waiting=9) == 50, "that is what fits"
    assert law.lowered == 1


def test_an_idle_engine_may_evict():
    law = begun(64, running=2)
    assert law.update(told(running=2, share=0.5, capacity=50_000), busy=64, waiting=9) == 72


def test_without_a_known_capacity_the_queue_and_the_cache_decide():
    law = begun(64)
    assert law.update(told(), busy=64, waiting=9) == 72
    assert law.update(told(), busy=72, waiting=9) == 81
    assert law.update(told(running=10, waiting=40), busy=81, waiting=9) == 81, "requests wait"
    assert law.update(told(share=0.5), busy=81, waiting=9) == 60
    assert law.update(told(share=0.5), busy=60, waiting=9) == 45


def test_an_engine_that_reports_nothing_keeps_its_limit():
    law = Law(256)
    for _ in range(9):
        law.update(Pressure(load=None, held=100_000, reused=99_000, ended=64, ended_tokens=1), busy=64, waiting=9)
    assert law.limit == 64


def test_an_engine_without_a_prefix_cache_is_not_starved_for_it():
    law = Law(256)
    for _ in range(20):
        law.update(told(share=0.0), busy=law.limit, waiting=9)
    assert law.limit > 64 and law.lowered == 0


def test_few_tokens_say_nothing():
    law = begun(64)
    few = Pressure(load=Load(30, 0), held=1000, reused=0, ended=64, ended_tokens=1000)
    assert law.update(few, busy=64, waiting=9) == 72


def test_the_limit_has_bounds():
    law = Law(64)
    for _ in range(100):
        law.update(told(), busy=law.limit, waiting=9)
    assert law.limit == 512
    for _ in range(100):
        law.update(told(200, share=0.5), busy=law.limit, waiting=9)
    assert law.limit == 4
    assert Law(1).update(told(), busy=1, waiting=0) == 1


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
    totals = [(100_000, 99_000), (200_000, 198_000), (0, 0), (300_000, 208_000)]
    readings = [
        Pressure(load=Load(30, 0), held=held, reused=reused, ended=64 * at, ended_tokens=64_000 * at)
        for at, (held, reused) in enumerate(totals, 1)
    ]
    driven = Driven(Law(256), [*readings[:2], OSError("gone"), readings[3]])
    driven.pace.go_on()
    await asyncio.sleep(0)
    for _ in range(4):
        await driven.period()
        driven.busy = (driven.pace.law.limit, 9)
    assert driven.applied == [64, 72, 54], "the engine still had a tenth of the last 100,000 tokens"
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


@pytest.mark.parametrize("work", WORKS, ids=[work.name for work in WORKS])
def test_in_the_model_of_an_engine_auto_is_near_the_best_fixed_number(work):
    """In simulated time. No fixed number is near the best for all works."""
    fixed = {limit: Simulation(work, limit, 256, 2).run()["seconds"] for limit in (16, 64, 256)}
    auto = Simulation(work, Law(USUAL, LONGEST), 256, 2).run()["seconds"]
    assert auto < 1.4 * min(fixed.values()) and 1.5 * auto < max(fixed.values())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_follows_its_engine(run_rollout, fake_sglang, monkeypatch, workers):
    """Two executions may run at a time, and some end only when three do: the engine reports room for it."""
    monkeypatch.setattr("slime_agl.pace.PERIOD_SECONDS", 0.05)
    fake_sglang.answer_with(lambda request: "ok")
    agl = {"runners": {"max_concurrency": "auto"}, "workers": {"count": workers, "slots": 8}}
    rows = [f"row {at}" for at in range(8)]
    output = run_rollout("tests.workers.agents.together", rows, agl=agl, sglang_server_concurrency=8)
    assert [sample.reward for sample in flat(output.samples)] == [1.0] * 8
    assert output.metrics["rollout/agl/concurrency"] > 2
    assert output.metrics["rollout/agl/concurrency_raised"] >= 1

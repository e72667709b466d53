"""Deadlines stand still while agents are parked."""

from __future__ import annotations

import asyncio

from slime_agl.lightning.clock import WorkingClock


async def test_the_clock_stands_still_in_a_pause() -> None:
    now = [100.0]
    clock = WorkingClock(lambda: now[0])
    now[0] += 5
    clock.pause()
    clock.pause()
    now[0] += 1000
    assert clock.seconds() == 5
    clock.resume()
    clock.resume()
    now[0] += 2
    assert clock.seconds() == 7


async def test_a_sleep_does_not_end_in_a_pause_and_ends_after_it() -> None:
    clock = WorkingClock()
    clock.pause()
    sleeping = asyncio.create_task(clock.sleep(1e-6))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not sleeping.done()
    clock.resume()
    await sleeping


async def test_a_pause_that_comes_later_stops_a_sleep_too() -> None:
    now = [0.0]
    clock = WorkingClock(lambda: now[0])
    sleeping = asyncio.create_task(clock.sleep(3600.0))
    await asyncio.sleep(0)
    clock.pause()
    await asyncio.sleep(0)
    now[0] += 7200
    await asyncio.sleep(0)
    assert not sleeping.done()
    clock.resume()
    now[0] += 3600
    clock.pause()
    await sleeping


async def test_no_agent_starts_in_a_pause_and_no_deadline_passes(bench) -> None:
    order: list[str] = []
    started, go_on = asyncio.Event(), asyncio.Event()

    async def agent(task, llm):
        order.append(f"start {task['n']}")
        started.set()
        await go_on.wait()
        return 1.0

    made = await bench(agent, max_concurrency=2, timeout_seconds=30.0)
    first = asyncio.create_task(made.run({"n": 0}))
    await started.wait()
    await made.service.pause("train")
    second = asyncio.create_task(made.run({"n": 1}))
    go_on.set()
    assert (await first).final.status == "succeeded"
    evaluated = await made.run({"n": 2}, mode="val")
    assert evaluated.final.status == "succeeded" and order == ["start 0", "start 2"]
    await made.service.resume("train")
    assert (await second).final.status == "succeeded" and order[-1] == "start 1"


async def test_paused_rollouts_leave_an_evaluation_its_slots(bench) -> None:
    async def agent(task, llm):
        if task["mode"] == "train":
            await asyncio.get_running_loop().create_future()
        return 1.0

    made = await bench(agent, max_concurrency=1)
    held = [asyncio.create_task(made.run({"mode": "train"})) for _ in range(3)]
    while not made.session.events:
        await asyncio.sleep(0)
    await made.service.pause("train")
    assert (await made.run({"mode": "val"}, mode="val")).final.status == "succeeded"
    await made.service.close()
    await asyncio.gather(*held, return_exceptions=True)

"""Which worker gets an execution."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from slime_agl.workers.crew import Crew, Member


def member(slots: int) -> Member:
    return Member(cast(Any, None), slots)


def crew(*slots: int, limit: int = 100) -> tuple[Crew, list[Member]]:
    crew, members = Crew(limit), [member(count) for count in slots]
    for one in members:
        crew.add(one)
    return crew, members


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_least_loaded_member_is_next() -> None:
    line, (small, large) = crew(2, 4)
    taken = [await line.reserve("train") for _ in range(6)]
    assert [taken.count(small), taken.count(large)] == [2, 4]
    assert taken[:3].count(small) == 1


async def test_who_waits_is_served_in_order() -> None:
    line, (one,) = crew(1)
    await line.reserve("train")
    waiting = [asyncio.ensure_future(line.reserve(lane)) for lane in ("train", "val", "train")]
    for at in range(3):
        await settled()
        assert [task.done() for task in waiting] == [place < at for place in range(3)]
        line.release(one)
    await asyncio.gather(*waiting)


async def test_a_parked_lane_lets_the_other_pass() -> None:
    line, (one,) = crew(1)
    line.park("train")
    train, val = (asyncio.ensure_future(line.reserve(lane)) for lane in ("train", "val"))
    await settled()
    assert not train.done() and val.result() is one
    line.release(one)
    await settled()
    assert not train.done()
    line.resume("train")
    assert await train is one


async def test_no_more_than_the_limit_run() -> None:
    line, (one, _) = crew(4, 4, limit=3)
    taken = [await line.reserve("train") for _ in range(3)]
    fourth = asyncio.ensure_future(line.reserve("train"))
    await settled()
    assert not fourth.done()
    line.release(taken[0])
    await fourth


async def test_who_gives_up_waiting_leaves_no_slot_behind() -> None:
    line, (one,) = crew(1)
    await line.reserve("train")
    gone, stays = (asyncio.ensure_future(line.reserve("train")) for _ in range(2))
    await settled()
    line.release(one)  # hands the slot to `gone`, which has not run yet
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await stays is one


async def test_a_new_member_is_for_those_who_wait() -> None:
    line = Crew(10)
    waiting = asyncio.ensure_future(line.reserve("train"))
    await settled()
    new = member(1)
    line.add(new)
    assert await waiting is new


async def test_a_removed_member_gets_nothing_more() -> None:
    line, (one, other) = crew(2, 2)
    assert line.remove(one) and not line.remove(one)
    assert [await line.reserve("train") for _ in range(2)] == [other, other]


async def test_when_nobody_is_left_those_who_wait_are_told() -> None:
    line = Crew(10)
    waiting = [asyncio.ensure_future(line.reserve(lane)) for lane in ("train", "val")]
    await settled()
    line.refuse(ValueError("nobody"))
    for task in waiting:
        with pytest.raises(ValueError, match="nobody"):
            await task

"""How far ahead work may start: the staleness bound holds in whatever order groups finish."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_agl.errors import HostError
from slime_agl.outstanding import Outstanding
from slime_agl.rollout.admission import Ahead, Batchwise, Bounded, Held
from slime_agl.rollout.pool import ActiveGroup, Pool


class Numbers:
    """A data source of numbered groups, `rows` of them."""

    def __init__(self, rows: int = 1 << 30) -> None:
        self.given, self.rows, self.returned = 0, rows, []

    def get_samples(self, count: int) -> list[list[Any]]:
        first, self.given = self.given, min(self.rows, self.given + count)
        return [[number] for number in range(first, self.given)]

    def add_samples(self, groups: list[list[Any]]) -> None:
        self.returned += groups


async def deliver(batch: int, staleness: int, steps: int, room: int, seed: int) -> list[list[tuple[int, int]]]:
    """Batches of (group, age), where `room` groups go on at a time, finish in random order and now and then one is
    dropped."""
    chance, pool, source, batches = random.Random(seed), Pool(Outstanding()), Numbers(), []
    unfinished: list[tuple[ActiveGroup, asyncio.Event]] = []

    def admit(group: list[Any]) -> None:
        done = asyncio.Event()

        async def work(run: ActiveGroup) -> list[Any]:
            await done.wait()
            return []

        unfinished.append((pool.start(group, work), done))

    for step in range(steps):
        admission = Ahead(batch, step, staleness, left=steps - 1 - step)
        kept: list[tuple[int, int]] = []
        while len(kept) < batch:
            for group in pool.fetch(source, admission.wanted(len(kept), len(pool), pool.slow(step))):
                admit(group)
            taking = asyncio.ensure_future(pool.next(lambda place, run: admission.may_wait(len(kept), place, run)))  # noqa: B023
            while not taking.done():
                begun = unfinished[:room]
                for run, _ in begun:
                    run.begin(step)
                if begun:
                    unfinished.pop(chance.randrange(len(begun)))[1].set()
                for _ in range(4):
                    await asyncio.sleep(0)
            run = taking.result()
            pool.remove(run)
            if chance.random() > 0.1:
                kept.append((run.group[0], run.age(step)))
        batches.append(kept)
    assert len(pool) == 0, "nothing is started that no step needs"
    return batches


@settings(max_examples=120, deadline=None)
@given(
    batch=st.integers(1, 5),
    staleness=st.integers(0, 4),
    steps=st.integers(1, 9),
    room=st.integers(1, 25),
    seed=st.integers(0, 10**6),
)
def test_no_group_is_older_than_allowed_and_none_comes_twice(
    batch: int, staleness: int, steps: int, room: int, seed: int
) -> None:
    batches = asyncio.run(deliver(batch, staleness, steps, room, seed))
    assert [len(kept) for kept in batches] == [batch] * steps
    groups = [group for kept in batches for group, _ in kept]
    assert len(set(groups)) == len(groups)
    assert max(age for kept in batches for _, age in kept) <= staleness


async def test_work_starts_as_far_ahead_as_allowed():
    assert Ahead(4, step=0, staleness=0, left=9).wanted(kept=0, in_pool=0, slow=0) == 4
    assert Ahead(4, step=0, staleness=3, left=9).wanted(kept=0, in_pool=0, slow=0) == 8
    assert Ahead(4, step=1, staleness=3, left=9).wanted(kept=0, in_pool=6, slow=0) == 2
    assert Ahead(4, step=9, staleness=3, left=0).wanted(kept=3, in_pool=1, slow=0) == 0
    assert Batchwise(4, fetch=6).wanted(kept=1, in_pool=2, slow=0) == 6
    assert Batchwise(4, fetch=6).wanted(kept=1, in_pool=3, slow=0) == 0


async def test_slow_groups_keep_nothing_from_starting_until_they_are_due():
    assert Ahead(4, step=5, staleness=3, left=9).wanted(kept=0, in_pool=6, slow=6) == 8
    assert Ahead(4, step=5, staleness=3, left=9).wanted(kept=1, in_pool=12, slow=10) == 3
    assert Ahead(4, step=5, staleness=1, left=9).wanted(kept=1, in_pool=6, slow=6) == 1


async def finished() -> list[Any]:
    return []


async def forever() -> list[Any]:
    return await asyncio.get_running_loop().create_future()


async def test_the_oldest_that_has_finished_is_taken_first_and_one_that_is_due_is_waited_for():
    pool, source = Pool(Outstanding()), Numbers()
    for step, work in ((0, forever()), (1, finished()), (1, finished())):
        pool.start(*pool.fetch(source, 1), lambda _, work=work: work).begin(step)
    free = Ahead(1, step=1, staleness=2, left=2)
    run = await pool.next(lambda place, run: free.may_wait(0, place, run))
    assert run.group == [1]
    due = Ahead(1, step=2, staleness=2, left=2)
    waiting = asyncio.ensure_future(pool.next(lambda place, run: due.may_wait(0, place, run)))
    for _ in range(4):
        await asyncio.sleep(0)
    assert not waiting.done()
    pool.active[0].task.cancel()
    assert (await waiting).group == [0]
    await pool.close()
    assert source.returned == [[0], [1], [2]]


async def test_the_errors_of_several_groups_end_a_run_as_one(caplog):
    """asyncio logs an error that nobody asked for when its task is forgotten."""

    async def raises() -> None:
        raise RuntimeError("as told")

    source, pool = Numbers(), Pool(Outstanding())
    for group in pool.fetch(source, 2):
        pool.start(group, lambda _: raises())
    await asyncio.wait([run.task for run in pool.active])
    await pool.close()
    gc.collect()
    assert caplog.records == [] and source.returned == [[0], [1]]


async def test_a_pool_that_runs_dry_says_so():
    pool = Pool(Outstanding())
    assert pool.fetch(Numbers(rows=0), 3) == []
    with pytest.raises(HostError, match="no more groups"):
        await pool.next(lambda place, run: True)


async def test_what_a_restart_has_to_run_again_is_known_at_every_moment():
    outstanding, source = Outstanding(), Numbers()
    pool = Pool(outstanding)
    for group in pool.fetch(source, 4):
        pool.start(group, lambda _: forever())
    first, second, third, fourth = pool.active
    outstanding.deliver(0, [first.group])
    outstanding.deliver(1, [second.group])
    outstanding.forget([third.group])
    assert outstanding.after(-1) == [[0], [1], [3]]
    assert outstanding.after(0) == [[1], [3]]
    assert outstanding.after(1) == [[3]]
    outstanding.deliver(2, [])
    assert outstanding.after(-1) == [[1], [3]], "step 0 is behind: nobody asks for what came before it"
    await pool.close()
    assert outstanding.after(1) == []


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (Held(0, 0, 3, 0), 5),
        (Held(0, 0, 3, 10), 5),
        (Held(40, 20, 2, 10), 2),
        (Held(40, 19, 2, 10), 2),
        (Held(40, 60, 3, 10), 0),
        (Held(40, 60, 0, 10), 1),
        (Held(100, 0, 1, 10), 0),
        (Held(100, 0, 0, 10), 1),
        (Held(0, 0, 0, None), 4),
        (Held(0, 0, 3, None), 1),
    ],
)
def test_groups_that_hold_much_stop_admission_but_never_the_batch(held: Held, wanted: int) -> None:
    told: list[str] = []
    admission = Bounded(Batchwise(target=8, fetch=5), 100, 4, lambda: held, told.append)
    assert admission.wanted(kept=1, in_pool=2, slow=0) == wanted
    assert bool(told) == (held.kept >= 100)
    assert admission.wanted(kept=6, in_pool=2, slow=0) == 0

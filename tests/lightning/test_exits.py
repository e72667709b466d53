"""Whatever an agent does to the shared loop, others continue and its own attempt reports why it failed."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading

import pytest

from slime_agl.errors import SlimeAglError
from slime_agl.lightning.service import Lightning
from slime_agl.lightning.watchdog import LoopWatchdog
from slime_agl.loops import LoopThread

PATIENCE = 60


class Session:
    def began(self): ...

    async def open(self, rollout_id, attempt_id):
        return "key"

    async def seal(self, rollout_id, attempt_id): ...

    def may_retry(self, sealed, status, error_type):
        return False


def run_on_a_loop_of_its_own(agent, tasks, *, mode="auto", **limits):
    """Outcomes and metrics of rollouts side by side, on a loop thread as the runtime has one."""
    limits = {"max_concurrency": 8, "timeout_seconds": None, "max_attempts": 1} | limits
    service = Lightning(agent, mode=mode, **limits)
    thread = LoopThread("test", service.new_loop(), exited=service.exited)

    async def main():
        await service.start()
        resources = await service.publish(0, endpoint="http://h:1/v1", model="m", sampling_parameters={})
        runs = [service.run(task, lane="train", resources_id=resources, port=Session()) for task in tasks]
        return await asyncio.gather(*runs), await service.metrics()

    thread.start()
    try:
        outcomes, metrics = thread.submit(main()).result(PATIENCE)
        return [outcome.final for outcome in outcomes], metrics
    finally:
        thread.submit(service.close()).result(PATIENCE)
        thread.stop()


async def leave() -> None:
    sys.exit(3)


async def in_a_child(task):
    await asyncio.create_task(leave())


async def in_a_group(task):
    async with asyncio.TaskGroup() as group:
        group.create_task(leave())


async def in_a_callback(task):
    asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.get_running_loop().create_future()


async def in_a_leaked_task(task):
    task["leaked"] = asyncio.create_task(leave())
    await asyncio.get_running_loop().create_future()


async def by_an_interrupt(task):
    raise KeyboardInterrupt


async def by_an_interrupt_in_a_child(task):
    async def interrupt():
        raise KeyboardInterrupt

    await asyncio.create_task(interrupt())


async def by_stopping_the_loop(task):
    asyncio.get_running_loop().stop()
    await asyncio.get_running_loop().create_future()


ENDS = [in_a_child, in_a_group, in_a_callback, in_a_leaked_task, by_an_interrupt, by_an_interrupt_in_a_child]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mode", ["auto", "thread"])
@pytest.mark.parametrize("end", [*ENDS, by_stopping_the_loop], ids=lambda end: end.__name__)
def test_an_agent_that_ends_the_loop_fails_alone(end, mode) -> None:
    async def agent(task):
        if "end" in task:
            await task["end"](task)
        for _ in range(20):
            await asyncio.sleep(0)
        return 1.0

    ended, *others = run_on_a_loop_of_its_own(agent, [{"end": end}, {}, {}], mode=mode)[0]
    assert [other.reward for other in others] == [1.0, 1.0]
    assert ended.status == "failed" and ended.error_type != "TimeoutError"
    said = "KeyboardInterrupt" if "interrupt" in end.__name__ else "SystemExit: 3"
    assert ("top" if end is by_stopping_the_loop else said) in ended.error


def test_an_exit_after_the_attempts_end_is_counted_and_harms_nobody() -> None:
    async def agent(task):
        if "leak" in task:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, sys.exit, 3)
            return 0.0
        for _ in range(50):
            await asyncio.sleep(0)
        return 1.0

    outcomes, metrics = run_on_a_loop_of_its_own(agent, [{"leak": True}, {}])
    assert outcomes[1].reward == 1.0 and metrics["exits_caught"] == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whoever_waits_is_told_when_the_thread_of_a_loop_dies() -> None:
    class Broken(asyncio.SelectorEventLoop):
        broken = False

        def _run_once(self) -> None:
            if self.broken:
                raise OSError("somebody closed the selector")
            super()._run_once()

    broken = Broken()
    thread = LoopThread("test", broken, exited=lambda error: None)
    thread.start()

    async def wait():
        broken.broken = True
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SlimeAglError, match="thread test has ended"):
        thread.submit(wait()).result(PATIENCE)
    late = asyncio.sleep(0)
    with pytest.raises(SlimeAglError, match="thread test has ended"):
        thread.submit(late)
    thread.stop()
    gc.collect()  # the task that nobody can end any more complains here, not in another test


def test_an_agent_that_blocks_the_loop_is_named_with_its_line(caplog) -> None:
    seen, release = [], threading.Event()

    def tell(blockage) -> None:
        seen.append(blockage)
        release.set()

    watchdogs = []

    async def agent(task):
        watchdog = LoopWatchdog(asyncio.get_running_loop(), threading.get_ident(), seconds=0.05, seen=tell)
        watchdogs.append(watchdog)
        watchdog.start()
        assert release.wait(PATIENCE)  # it stands here

    (outcome,), _ = run_on_a_loop_of_its_own(agent, [{}])
    (watchdog,) = watchdogs
    watchdog.stop()
    assert outcome.status == "succeeded", outcome.error
    assert seen[0].owner.name == (outcome.rollout_id, outcome.attempt_id)
    assert seen[0].line == "assert release.wait(PATIENCE)  # it stands here"
    assert f"{__file__}:" in seen[0].place and "in agent" in seen[0].place
    assert f"attempt {outcome.attempt_id}" in caplog.text and "runners.mode" in caplog.text
    assert watchdog.count == 1


def test_an_agent_that_cancels_all_tasks_it_finds_ends_no_other():
    others_run = asyncio.Event()

    async def agent(task):
        if task["cancels"]:
            for found in asyncio.all_tasks():
                found.cancel()
            others_run.set()
        else:
            await others_run.wait()
        return 1.0

    outcomes, _ = run_on_a_loop_of_its_own(agent, [{"cancels": False}, {"cancels": True}, {"cancels": False}])
    assert [outcome.status for outcome in outcomes] == ["succeeded"] * 3


def test_tasks_that_an_agent_leaves_running_are_ended_and_counted():
    left = []

    async def agent(task):
        left.append(asyncio.create_task(asyncio.sleep(3600)))
        await asyncio.sleep(0)
        return 1.0

    outcomes, metrics = run_on_a_loop_of_its_own(agent, [{}, {}])
    assert [outcome.status for outcome in outcomes] == ["succeeded"] * 2
    assert [task.cancelled() for task in left] == [True, True]
    assert (metrics["leaked_tasks"], metrics["abandoned_tasks"]) == (2, 0)


def test_the_spans_of_an_agent_are_all_written_and_none_of_their_tasks_counts_as_its():
    from agentlightning import emit_reward

    async def agent(task):
        for number in range(200):
            emit_reward(float(number))

    outcomes, metrics = run_on_a_loop_of_its_own(agent, [{}])
    assert (len(outcomes[0].spans), outcomes[0].reward, metrics["leaked_tasks"]) == (200, 199.0, 0)


def test_an_endless_loop_in_a_coroutine_is_interrupted_past_the_deadline(monkeypatch):
    monkeypatch.setitem(LoopWatchdog.__init__.__kwdefaults__, "seconds", 0.05)

    async def agent(task):
        while task["endless"]:
            try:
                sum(range(1000))
            except Exception:
                continue
        return 1.0

    outcomes, _ = run_on_a_loop_of_its_own(agent, [{"endless": True}, {"endless": False}], timeout_seconds=0.2)
    assert [outcome.status for outcome in outcomes] == ["failed", "succeeded"]
    assert "BlockedTooLong" in outcomes[0].error and "sum(range(1000))" in outcomes[0].error


def test_who_waits_for_a_loop_that_cannot_be_interrupted_is_told_who_blocks_it():
    ended = threading.Event()
    thread = LoopThread("test", asyncio.new_event_loop(), exited=lambda error: None)
    thread.start()

    async def blocks() -> None:
        ended.wait()  # a call into C that no exception reaches

    async def watched() -> None:
        LoopWatchdog(
            asyncio.get_running_loop(), threading.get_ident(), seconds=0.02, limit=0.02, hopeless=thread.give_up
        ).start()

    thread.submit(watched()).result(PATIENCE)
    blocked = thread.submit(blocks())
    with pytest.raises(SlimeAglError, match=r"test_exits\.py:\d+ in blocks: `ended\.wait\(\)"):
        blocked.result(PATIENCE)
    with pytest.raises(SlimeAglError, match="cannot be interrupted there"):
        thread.submit(asyncio.sleep(0))
    ended.set()
    thread.stop()


def test_standard_streams_that_an_agent_closed_are_there_again():
    async def agent(task):
        sys.stdout = open(os.devnull, "w")
        sys.stdout.close()
        return 1.0

    before = sys.stdout
    try:
        run_on_a_loop_of_its_own(agent, [{}])
        assert not sys.stdout.closed
        print("shown", flush=True)
    finally:
        sys.stdout = before

"""The store keeps what is in use; forgetting costs only the size of what is forgotten."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from slime_agl.errors import SlimeAglError
from slime_agl.lightning._agl import RolloutConfig
from slime_agl.lightning.store import ReleasingStore


async def agent(task, llm):
    from agentlightning import emit_message, emit_reward

    for line in range(task["lines"]):
        emit_message(f"line {line}")
    emit_reward(1.0)
    if task["fails"]:
        raise ValueError("this one fails")


def containers(store: ReleasingStore) -> Iterator[tuple[str, int]]:
    """Every container inside the store, of upstream's making or ours, with its number of entries."""
    for name, value in vars(store).items():
        if isinstance(value, (dict, list, set)):
            yield name, len(value)
    for name, collection in vars(store.collections).items():
        for inner in ("_items", "_values", "_size"):
            value = getattr(collection, inner, 0)
            yield f"{name}.{inner}", value if isinstance(value, int) else _leaves(value)


def _leaves(value: Any) -> int:
    if not isinstance(value, dict):
        return len(value)
    return sum(1 + (_leaves(leaf) if isinstance(leaf, dict) else 0) for leaf in value.values())


async def test_nothing_is_left_of_released_steps(bench) -> None:
    made = await bench(agent, max_concurrency=16, max_attempts=2)
    sizes = []
    for step in range(1, 8):
        await made.publish(step)
        outcomes = await asyncio.gather(*(made.run({"lines": n % 3, "fails": n % 5 == 0}) for n in range(50)))
        assert (await made.service.metrics())["store/rollouts"] == 50
        await made.service.release([outcome.rollout_id for outcome in outcomes])
        sizes.append(dict(containers(made.store)))

    assert sizes[-1] == sizes[0]
    left = {name: size for name, size in sizes[-1].items() if size}
    # One snapshot of resources, and a record for each of the 16 slots.
    assert left == {"_resources._items": 1, "_resources._size": 1, "_workers._items": 16, "_workers._size": 16}
    assert made.store._total_span_bytes == 0


async def test_no_object_of_a_released_rollout_survives(bench) -> None:
    from agentlightning.types import Rollout, Span

    made = await bench(agent)

    async def step() -> set[str]:
        outcomes = await asyncio.gather(*(made.run({"lines": 2, "fails": n % 2 == 0}) for n in range(20)))
        return {outcome.rollout_id for outcome in outcomes}

    ids = await step()
    await made.service.release(ids)
    await asyncio.sleep(0)
    gc.collect()
    assert [o for o in gc.get_objects() if type(o) in (Rollout, Span) and o.rollout_id in ids] == []


async def test_a_cancelled_run_can_be_released(bench) -> None:
    made = await bench(agent, max_concurrency=1)
    runs = [asyncio.create_task(made.run({"lines": 1, "fails": False})) for _ in range(3)]
    ids = await made.queued(3)
    runs[2].cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    assert sorted(made.service.take_ended()) == sorted(ids) and made.service.take_ended() == []
    await made.service.release(ids)
    assert (await made.service.metrics())["store/rollouts"] == 0
    assert await made.store.collections.rollout_queue.size() == 0


async def test_a_running_rollout_is_not_forgotten() -> None:
    store = ReleasingStore()
    rollout = await store.enqueue_rollout({}, mode="train", resources_id="none")
    with pytest.raises(SlimeAglError, match=f"{rollout.rollout_id} is queuing"):
        await store.forget([rollout.rollout_id])
    await store.withdraw(rollout.rollout_id)
    await store.forget([rollout.rollout_id, rollout.rollout_id, "ro-unknown"])
    assert await store.get_rollout_by_id(rollout.rollout_id) is None


def test_store_calls_never_suspend() -> None:
    def result(call: Any) -> Any:
        with pytest.raises(StopIteration) as ended:
            call.send(None)
        return ended.value.value

    async def main() -> None:
        store = ReleasingStore()
        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        rollout = result(store.enqueue_rollout({}, mode="train", resources_id="r", config=config))
        first = result(store.dequeue_rollout(worker_id="Worker-1"))
        assert first.rollout_id == rollout.rollout_id
        result(store.update_attempt(first.rollout_id, first.attempt.attempt_id, status="failed"))
        second = result(store.dequeue_rollout(worker_id="Worker-1"))
        assert second.attempt.sequence_id == 2
        result(store.get_many_span_sequence_ids([(second.rollout_id, second.attempt.attempt_id)]))
        result(store.cancel_attempt(second.rollout_id, second.attempt.attempt_id))
        assert result(store.get_rollout_by_id(rollout.rollout_id)).status == "cancelled"
        assert result(store.dequeue_rollout(worker_id="Worker-1")) is None
        result(store.forget([rollout.rollout_id]))

    asyncio.run(main())


async def test_resources_of_an_earlier_step_stay_while_a_rollout_uses_them(bench) -> None:
    go = asyncio.Event()

    async def waiting(task, llm):
        await go.wait()
        return 1.0

    made = await bench(waiting)
    old = made.resources_id
    running = asyncio.create_task(made.run({}))
    while not made.session.events:
        await asyncio.sleep(0)

    new = await made.publish(1)
    again = await made.publish(1)
    assert await made.store.get_resources_by_id(old) is not None
    go.set()
    assert (await running).final.status == "succeeded"
    assert await made.store.get_resources_by_id(old) is None
    for resources_id in (new, again):
        assert await made.store.get_resources_by_id(resources_id) is not None
    with pytest.raises(SlimeAglError, match="latest step is 1"):
        await made.service.run({}, lane="train", resources_id=old, port=made.session)

"""The store keeps what is in use; forgetting costs only the size of what is forgotten."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from slime_agl.errors import SlimeAglError
from slime_agl.lightning._agl import InMemoryLightningStore, RolloutConfig, Span
from slime_agl.lightning.store import ReleasingStore, span_bytes


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
    rollout_id = store.enqueue({}, mode="train", resources_id="none", config=RolloutConfig())
    with pytest.raises(SlimeAglError, match=f"{rollout_id} is queuing"):
        await store.forget([rollout_id])
    await store.withdraw(rollout_id)
    await store.forget([rollout_id, rollout_id, "ro-unknown"])
    assert await store.get_rollout_by_id(rollout_id) is None


def test_store_calls_never_suspend() -> None:
    def result(call: Any) -> Any:
        with pytest.raises(StopIteration) as ended:
            call.send(None)
        return ended.value.value

    async def main() -> None:
        store = ReleasingStore()
        config = RolloutConfig(max_attempts=2, retry_condition=["failed"])
        rollout_id = store.enqueue({}, mode="train", resources_id="r", config=config)
        first = store.dequeue(rollout_id, "Worker-1")
        result(store.update_attempt(rollout_id, first.attempt.attempt_id, status="failed"))
        second = store.dequeue(rollout_id, "Worker-1")
        assert second.attempt.sequence_id == 2
        result(store.write(rollout_id, second.attempt.attempt_id, [a_span(second)]))
        result(store.cancel_attempt(rollout_id, second.attempt.attempt_id))
        assert result(store.get_rollout_by_id(rollout_id)).status == "cancelled"
        assert store.dequeue(rollout_id, "Worker-1") is None
        result(store.forget([rollout_id]))

    asyncio.run(main())


def a_span(attempted: Any, span_id: str = "0123456789abcdef") -> Span:
    return Span.from_attributes(
        attributes={"said": "something", "ids": [1, 2, 3]},
        rollout_id=attempted.rollout_id,
        attempt_id=attempted.attempt.attempt_id,
        trace_id="0" * 32,
        span_id=span_id,
        name="a span",
    )


TASK = {"prompt": [{"role": "user", "content": "hello"}], "label": None}
CONFIG = RolloutConfig(max_attempts=2, retry_condition=["failed", "timeout"])
SPANS = (["a"], ["b", "c", "b"])


async def by_upstream(store: InMemoryLightningStore) -> list[Any]:
    """Run one execution that fails once, then succeeds, by upstream's own methods. Returns what the tables held."""
    rollout_id = (await store.enqueue_rollout(TASK, mode="train", resources_id="rs-1", config=CONFIG)).rollout_id
    seen = [tables(store)]
    for status, names in zip(("failed", "succeeded"), SPANS, strict=True):
        attempted = await store.dequeue_rollout(worker_id="Worker-1")
        assert attempted is not None and attempted.rollout_id == rollout_id
        seen.append(plain(attempted.model_dump()))
        attempt_id = attempted.attempt.attempt_id
        seen.append(tables(store))
        await store.update_attempt(rollout_id, attempt_id, status="running")
        seen.append(tables(store))
        spans = [a_span(attempted, name) for name in names]
        numbers = await store.get_many_span_sequence_ids([(rollout_id, attempt_id)] * len(spans))
        for span, number in zip(spans, numbers, strict=True):
            span.sequence_id = number
        seen.append([plain(span.model_dump()) for span in await store.add_many_spans(spans)])
        seen.append(tables(store))
        await store.update_attempt(rollout_id, attempt_id, status=status, metadata=None)
        seen.append((await store.get_rollout_by_id(rollout_id)).status)
        seen.append(tables(store))
    return seen


async def by_the_straight_way(store: ReleasingStore) -> list[Any]:
    """The same as `by_upstream`."""
    rollout_id = store.enqueue(TASK, mode="train", resources_id="rs-1", config=CONFIG)
    seen = [tables(store)]
    for status, names in zip(("failed", "succeeded"), SPANS, strict=True):
        attempted = store.dequeue(rollout_id, "Worker-1")
        assert attempted is not None
        seen.append(plain(attempted.model_dump()))
        attempt_id = attempted.attempt.attempt_id
        seen.append(tables(store))
        store.run(rollout_id, attempt_id)
        seen.append(tables(store))
        added = await store.write(rollout_id, attempt_id, [a_span(attempted, name) for name in names])
        seen.append([plain(span.model_dump()) for span in added])
        seen.append(tables(store))
        if status == "succeeded":
            store.succeed(rollout_id, attempt_id)
        else:
            await store.update_attempt(rollout_id, attempt_id, status=status, metadata=None)
        seen.append(store.status(rollout_id))
        seen.append(tables(store))
    return seen


def tables(store: InMemoryLightningStore) -> dict[str, Any]:
    """Everything that a store holds; ids by order of appearance, times as whether they are set."""
    inside = {name: getattr(store.collections, name) for name in vars(store.collections) if name != "_lock"}
    found: dict[str, Any] = {}
    for name, collection in inside.items():
        for inner in ("_items", "_values", "_size"):
            found[f"{name}.{inner}"] = getattr(collection, inner, None)
    names = ("_start_time_by_rollout", "_span_bytes_by_rollout", "_total_span_bytes", "_running_rollout_ids")
    found |= {name: getattr(store, name) for name in names}
    found["done"] = {name: event.is_set() for name, event in store._completion_events.items()}
    return plain(found)


def plain(value: Any, names: dict[str, str] | None = None) -> Any:
    names = {} if names is None else names
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(), names)
    if isinstance(value, dict):
        return {plain(key, names): plain(item, names) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, deque)):
        return [plain(item, names) for item in value]
    if isinstance(value, str) and value.startswith(("ro-", "at-")):
        return names.setdefault(value, f"{value[:3]}{len(names)}")
    return "a time" if isinstance(value, float) else value


async def test_the_straight_way_leaves_the_tables_as_upstreams_methods_do() -> None:
    upstream = InMemoryLightningStore(scan_debounce_seconds=1e9, span_size_estimator=span_bytes)
    assert await by_the_straight_way(ReleasingStore()) == await by_upstream(upstream)


async def test_the_agent_gets_a_copy_of_its_task() -> None:
    store = ReleasingStore()
    rollout_id = store.enqueue(TASK, mode="train", resources_id="rs-1", config=CONFIG)
    store.dequeue(rollout_id, "Worker-1").input["prompt"][0]["content"] = "changed"
    assert TASK["prompt"][0]["content"] == "hello"


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

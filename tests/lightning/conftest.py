"""A port that records, and services that are closed after each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from slime_agl.lightning.service import Lightning
from slime_agl.lightning.store import ReleasingStore


class RecordingSession:
    """Records what happens to sessions; an attempt's key names it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def began(self) -> None: ...

    async def open(self, rollout_id: str, attempt_id: str) -> str:
        self.events.append(("open", rollout_id, attempt_id))
        return f"key-{rollout_id}-{attempt_id}"

    async def seal(self, rollout_id: str, attempt_id: str) -> str:
        self.events.append(("seal", rollout_id, attempt_id))
        return f"left by {attempt_id}"

    def may_retry(self, sealed: Any, status: str, error_type: str) -> bool:
        return status != "succeeded"


class Bench:
    """A started service around one agent, with resources published for step 0."""

    def __init__(self, service: Lightning, session: RecordingSession, resources_id: str) -> None:
        self.service = service
        self.session = session
        self.resources_id = resources_id

    @property
    def store(self) -> ReleasingStore:
        assert self.service.store is not None
        return self.service.store

    async def run(self, task: Any, *, mode: str = "train", **more: Any) -> Any:
        return await self.service.run(task, lane=mode, resources_id=self.resources_id, port=self.session, **more)

    async def queued(self, count: int) -> list[str]:
        """Wait for so many rollouts and return their ids in queueing order."""
        while len(held := await self.store.query_rollouts()) < count:
            await asyncio.sleep(0)
        return [rollout.rollout_id for rollout in held]

    async def publish(self, step: int) -> str:
        self.resources_id = await publish(self.service, step)
        return self.resources_id


async def publish(service: Lightning, step: int) -> str:
    return await service.publish(
        step, endpoint="http://gateway:1/v1", model="policy", sampling_parameters={"temperature": 1.0}
    )


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Any]:
    """Returns `await bench(agent, **limits) -> Bench`."""
    started: list[Lightning] = []

    async def start(agent: object, *, session: Any = None, **limits: Any) -> Bench:
        limits = {"mode": "auto", "max_concurrency": 8, "timeout_seconds": None, "max_attempts": 1} | limits
        session = session or RecordingSession()
        service = Lightning(agent, **limits)
        await service.start()
        started.append(service)
        return Bench(service, session, await publish(service, 0))

    yield start
    for service in started:
        await service.close()

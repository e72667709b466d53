"""What a test asks of the runtime, and a runner that it plays itself."""

from __future__ import annotations

from typing import Any

import httpx

from slime_agl.assemble import current
from slime_agl.lightning import _agl


def samples(output: Any) -> list[Any]:
    return [sample for group in output.samples for sample in group]


def ask(coroutine: Any) -> Any:
    """Await something on the runtime's loop."""
    return current().run(coroutine)


def store() -> Any:
    return current()._lightning._store


def wait_for_requests(fake: Any, count: int) -> None:
    """Wait for requests of processes that are still importing what they need."""
    for _ in range(4):
        try:
            return fake.wait_for_requests(count)
        except TimeoutError:
            continue
    fake.wait_for_requests(count)


class Hand:
    """A runner that a test plays, over HTTP like any other."""

    def __init__(self, port: int) -> None:
        self.store = _agl.LightningStoreClient(f"http://127.0.0.1:{port}", retry_delays=())

    async def take(self, worker_id: str = "Worker-hand") -> Any:
        """Wait for a rollout and begin its attempt."""
        while (taken := await self.store.dequeue_rollout(worker_id=worker_id)) is None:
            pass
        return taken

    async def llm(self, taken: Any) -> Any:
        update = await self.store.get_resources_by_id(taken.resources_id)
        return update.resources["main_llm"].with_attempted_rollout(taken)

    async def say(self, llm: Any, *messages: str, key: str | None = None) -> httpx.Response:
        said = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(messages)]
        async with httpx.AsyncClient(timeout=30) as client:
            return await client.post(
                f"{llm.endpoint}/chat/completions",
                json={"model": llm.model, "messages": said},
                headers={"Authorization": f"Bearer {llm.api_key if key is None else key}"},
            )

    async def reward(self, taken: Any, value: float, sequence_id: int | None = None) -> None:
        name = (taken.rollout_id, taken.attempt.attempt_id)
        place = await self.store.get_next_span_sequence_id(*name) if sequence_id is None else sequence_id
        await self.store.add_span(
            _agl.Span.from_attributes(
                attributes={"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": value},
                rollout_id=name[0],
                attempt_id=name[1],
                sequence_id=place,
                name="agentlightning.annotation",
                start_time=1.0,
                end_time=1.0,
            )
        )

    async def end(self, taken: Any, status: str = "succeeded") -> None:
        await self.store.update_attempt(taken.rollout_id, taken.attempt.attempt_id, status=status)

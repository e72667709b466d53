"""A turn's place among the spans of its attempt is the one reserved when its request arrived."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from slime_agl.lightning.turn_spans import TurnSpans


class SlowStore:
    """Gives places in order, each request once `answers` allows it."""

    def __init__(self) -> None:
        self.last, self.written = 0, []
        self.answers = asyncio.Semaphore(0)

    async def get_many_span_sequence_ids(self, names: list[tuple[str, str]]) -> list[int]:
        first = self.last + 1
        self.last += len(names)
        await self.answers.acquire()
        return list(range(first, self.last + 1))

    async def add_many_spans(self, spans: list[Any]) -> None:
        self.written += [(span.turn, span.sequence_id) for span in spans]


def made(turn: int):
    return lambda: SimpleNamespace(turn=turn, sequence_id=0)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_turn_that_is_faster_than_its_place_waits_for_it():
    store = SlowStore()
    spans = TurnSpans(("ro", "at"), store)  # type: ignore[arg-type]
    for turn in (0, 1):
        numbering = asyncio.ensure_future(spans.number(1))
        await settled()
        spans.add(made(turn))
        writing = asyncio.ensure_future(spans.write())
        await settled()
        assert not writing.done()
        store.answers.release()
        async with asyncio.timeout(10):
            await asyncio.gather(numbering, writing)
    assert store.written == [(0, 1), (1, 2)] and store.last == 2


async def test_a_turn_whose_place_cannot_be_reserved_takes_the_next_one(monkeypatch):
    monkeypatch.setattr("slime_agl.lightning.turn_spans.NUMBER_SECONDS", 0.01)
    store = SlowStore()
    spans = TurnSpans(("ro", "at"), store)  # type: ignore[arg-type]
    numbering = asyncio.ensure_future(spans.number(1))
    await settled()
    spans.add(made(0))
    writing = asyncio.ensure_future(spans.write())
    await numbering
    store.answers.release()
    await writing
    assert store.written == [(0, 2)]

"""A hanging test fails."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.conftest import fused


def test_a_thread_that_waits_for_nothing_is_failed_where_it_stands():
    with pytest.raises(pytest.fail.Exception, match="hangs"), fused(0.01, again=0.01):
        threading.Event().wait()


def test_a_coroutine_that_looks_again_and_again_is_failed_where_it_stands():
    async def never() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(pytest.fail.Exception, match="hangs"), fused(0.01, again=0.01):
        asyncio.run(never())

"""Sandboxes created ahead, by kind: what differs between executions is set when one is taken."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import replace
from typing import Protocol, cast

from slime_agl.errors import SandboxError
from slime_agl.sandbox.protocol import Sandbox, SandboxSpec

MOST_KINDS = 4


class Adoptable(Protocol):
    async def adopt(self, spec: SandboxSpec) -> None:
        """Take over labels, environment, network and endpoint of a spec of the same kind."""
        ...


class Warm:
    """count: how many to keep ready of each kind; the kind used longest ago goes first. Owned by one event loop."""

    def __init__(self, count: int, create: Callable[[SandboxSpec], Awaitable[Sandbox]]) -> None:
        self._count, self._create = count, create
        self._kept: OrderedDict[Hashable, list[asyncio.Task[Sandbox]]] = OrderedDict()
        self._closed = False
        self.used = 0

    @property
    def ready(self) -> int:
        return sum(task.done() for tasks in list(self._kept.values()) for task in tasks)

    async def take(self, spec: SandboxSpec) -> Sandbox | None:
        """Return a ready sandbox for a spec, None without one; then see to it that the next finds one."""
        if not self._count or spec.network == "open":
            return None
        kind = _kind(spec)
        tasks = self._kept.setdefault(kind, [])
        self._kept.move_to_end(kind)
        found: Sandbox | None = None
        while found is None and (done := next((task for task in tasks if task.done()), None)):
            tasks.remove(done)
            found = await self._adopted(done, spec)
        plain = replace(spec, labels={}, env={}, network="none", endpoint="")
        while len(tasks) < self._count and not self._closed:
            tasks.append(asyncio.ensure_future(self._adoptable(plain)))
        while len(self._kept) > MOST_KINDS:
            await _end(self._kept.popitem(last=False)[1])
        return found

    async def close(self) -> None:
        self._closed = True
        kept, self._kept = self._kept, OrderedDict()
        await asyncio.gather(*(_end(tasks) for tasks in kept.values()))

    async def _adoptable(self, spec: SandboxSpec) -> Sandbox:
        box = await self._create(spec)
        if not hasattr(box, "adopt"):
            await box.__aexit__(None, None, None)
            self._count = 0
            raise SandboxError("sandboxes of this backend cannot be kept warm; leave agl.sandbox.warm out")
        return box

    async def _adopted(self, task: asyncio.Task[Sandbox], spec: SandboxSpec) -> Sandbox | None:
        """Make a ready sandbox that of a spec; None if it failed meanwhile."""
        if task.cancelled() or task.exception() is not None:
            return None
        box = task.result()
        try:
            await cast(Adoptable, box).adopt(spec)
            self.used += 1
            return box
        except SandboxError:
            await box.__aexit__(None, None, None)
            return None
        except BaseException:
            await box.__aexit__(None, None, None)
            raise


def _kind(spec: SandboxSpec) -> Hashable:
    mounts = tuple(sorted(spec.mounts.items())), tuple(sorted(spec.shared.items()))
    return spec.image, spec.workdir, spec.limits, mounts


async def _end(tasks: list[asyncio.Task[Sandbox]]) -> None:
    for task in tasks:
        task.cancel()
        with contextlib.suppress(SandboxError, asyncio.CancelledError):
            await (await task).__aexit__(None, None, None)

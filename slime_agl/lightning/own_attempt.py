"""What an agent of ours may do with its own attempt. Outside an attempt of our runners, nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from slime_agl.lightning._agl import get_active_tracer
from slime_agl.lightning.owner import current


async def seal() -> None:
    """Refuse the attempt's model calls from now on; turns in flight are aborted. Idempotent."""
    owner = current.get()
    if owner is not None and owner.seal is not None:
        await owner.seal()


def count(name: str, by: int = 1) -> None:
    """Add to a metric of the step, reported as `rollout/agl/NAME`."""
    owner = current.get()
    if owner is not None:
        owner.counts[name] += by


async def sleep(seconds: float) -> None:
    """Wait for `seconds` in which the attempt was not parked."""
    owner = current.get()
    if owner is None or owner.clock is None:
        await asyncio.sleep(seconds)
    else:
        await owner.clock.sleep(seconds)


def note(name: str, attributes: Mapping[str, Any]) -> None:
    """Write a span of the attempt."""
    tracer = get_active_tracer()
    if tracer is not None:
        tracer.create_span(name, dict(attributes))

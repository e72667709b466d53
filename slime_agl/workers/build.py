"""Puts a fleet together from the configuration, and tells each of its workers what it is made of."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config, WorkersConfig
from slime_agl.config.gateway import WORKER, GatewayConfig
from slime_agl.errors import ConfigError
from slime_agl.host import RolloutArgs
from slime_agl.pace import Law
from slime_agl.workers.arguments import portable_arguments
from slime_agl.workers.fleet import Fleet
from slime_agl.workers.link import Plan, Transport
from slime_agl.workers.placement import Placement, connected
from slime_agl.workers.subprocesses import Subprocesses
from slime_agl.workers.worker import name_of

logger = logging.getLogger(__name__)

# Of a room above: a worker makes Samples and rewards, too.
MAKE_WORKER = "slime_agl.executor.in_worker:make_worker"
# Finished groups may hold one part in this many of the memory there is.
MEMORY_SHARE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where workers can be started.

    room: how many of this number. died: to be told the node on which one ended. memory: bytes for what workers return.
    """

    transport: Transport
    room: Callable[[int], int]
    died: Callable[[str], None]
    memory: Callable[[], int] = lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def site(config: WorkersConfig) -> Site:
    """The Ray cluster that this process is connected to, else this machine."""
    if connected():
        from slime_agl.workers.ray_actors import RayActors, nodes, object_store_bytes

        placement = Placement(config, nodes)
        return Site(
            transport=RayActors(config.num_cpus, placement),
            room=placement.room,
            died=placement.died,
            memory=object_store_bytes,
        )
    return Site(transport=Subprocesses(), room=lambda wanted: min(wanted, os.cpu_count() or 1), died=lambda _: None)


def make_fleet(config: Config, args: RolloutArgs, renderer: Renderer, *, at: Site | None = None) -> Fleet:
    """Assemble a fleet without starting it. at: instead of where `site` finds.

    Raises:
        ConfigError: a variable of `agl.workers.env` is not set; there is no room for a worker.
    """
    workers = config.workers
    at = at or site(workers)
    limit = config.runners.first_limit(args.concurrency)
    law = Law(limit, args.rollout_max_context_len) if config.runners.follows else None
    arguments = portable_arguments(vars(args.raw))
    environment = _environment(workers.env)

    def plan(number: int) -> Plan:
        return Plan(
            name=name_of(number),
            target=MAKE_WORKER,
            arguments={"config": of_worker(config, number), "arguments": arguments, "number": number},
            slots=workers.slots,
            environment=environment,
        )

    return Fleet(
        config=config,
        renderer=renderer,
        transport=at.transport,
        plan=plan,
        count=_count(workers, limit, at.room),
        limit=limit,
        law=law,
        most_bytes=at.memory() // MEMORY_SHARE if workers.held_bytes == "auto" else workers.held_bytes,
        died=at.died,
    )


def of_worker(config: Config, number: int) -> Config:
    """The configuration of the worker with this number: a runtime of one process, on a port of its own.

    The dashboard is the first worker's. Where to record comes with what is to be recorded.
    """
    return dataclasses.replace(
        config,
        workers=WorkersConfig(),
        gateway=_of_worker(config.gateway, number),
        runners=dataclasses.replace(config.runners, max_concurrency=config.workers.slots),
        dashboard_port=config.dashboard_port if number == 0 else None,
        record_dir=None,
    )


def _of_worker(gateway: GatewayConfig, number: int) -> GatewayConfig:
    url = gateway.public_url
    return dataclasses.replace(
        gateway,
        port=gateway.port + number if gateway.port else 0,
        public_url=None if url is None else url.replace(WORKER, str(number)),
    )


def _environment(names: tuple[str, ...]) -> dict[str, str]:
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigError(
            f"agl.workers.env names {', '.join(missing)}, not set in the environment of this process; set it where "
            "slime runs, or leave the name out"
        )
    return {name: os.environ[name] for name in names}


def _count(workers: WorkersConfig, limit: int, room: Callable[[int], int]) -> int:
    if workers.count != "auto":
        return workers.count
    return max(1, room(math.ceil(limit / workers.slots)))

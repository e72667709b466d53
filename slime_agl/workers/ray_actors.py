"""Workers as actors of the Ray cluster that slime runs on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import ray
from ray._private.state import available_resources_per_node  # there is no public way to ask per node
from ray.cloudpickle.cloudpickle_fast import dumps
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slime_agl.workers.frames import portable
from slime_agl.workers.link import CancelledThere, Lane, Plan, WorkerDied, make_target, unwound
from slime_agl.workers.placement import Node, Placement

logger = logging.getLogger(__name__)

# Calls at a time on the lanes that agents do not hold. Ray queues what goes beyond, without a word.
CONTROL_CALLS, BULK_CALLS, SPARE_RUNS = 32, 4, 8
# Up to here a copy of arrays costs less than a place of their own in the object store.
INLINE_BYTES = 64 * 1024

LANES: tuple[Lane, ...] = get_args(Lane)
Letter = bytes | tuple[bytes, list[pickle.PickleBuffer]]
"""A value as one argument of a call, or as its result; see `sealed`."""


class _Actor:
    """The worker's side. Each lane is a concurrency group, which has an event loop and a thread of its own."""

    def __init__(self, plan: Plan) -> None:
        # A worker of Ray's sends what it logs to the driver, but nothing is set up to log.
        logging.basicConfig(level=logging.INFO, format=f"[{plan.name}] %(levelname)s %(name)s: %(message)s")
        self._plan, self._node = plan, ray.get_runtime_context().get_node_id()
        self._target = make_target(plan)

    async def call(self, letter: Letter) -> Letter:
        """Call a method of the target: (Ray's id of this node, whether it returned, what it returned or raised)."""
        try:
            method, arguments = opened(letter)
            return sealed((self._node, True, await getattr(self._target, method)(*arguments)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # the edge of the process: the caller is to hear of everything
            return sealed((self._node, False, portable(error, self._plan.name)))


class RayActor:
    """A link to an actor.

    node: Ray's id of the node that it is to be placed on; with its first answer, of the node that it runs on. moved: is
    told both when they differ.
    """

    def __init__(self, plan: Plan, handle: Any, node: str, moved: Callable[[str, str], None]) -> None:
        self.name, self.node = plan.name, node
        self._moved = moved
        self._handle = handle
        self._lanes = {lane: handle.call.options(concurrency_group=lane) for lane in LANES}
        self._death: WorkerDied | None = None

    @property
    def dead(self) -> bool:
        return self._death is not None

    async def call(self, method: str, /, *arguments: Any, lane: Lane = "control") -> Any:
        if self._death is not None:
            raise self._death
        ref = self._lanes[lane].remote(sealed((method, arguments)))
        answer = asyncio.ensure_future(self._answer(ref))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            ray.cancel(ref)
            await unwound(answer)
            raise

    async def _answer(self, ref: Any) -> Any:
        try:
            node, good, value = opened(await ref)
        except (RayActorError, ObjectLostError, NodeDiedError) as error:  # a large result is lost with its node
            self._death = self._death or WorkerDied(f"worker {self.name} on node {self.node[:8]} ended: {error}")
            raise self._death from None
        except TaskCancelledError:
            raise CancelledThere(f"a call was cancelled within worker {self.name}") from None
        if node != self.node:
            planned, self.node = self.node, node
            self._moved(planned, node)
        if good:
            return value
        raise value

    async def kill(self) -> None:
        self._death = self._death or WorkerDied(f"worker {self.name} was ended")
        await asyncio.to_thread(ray.kill, self._handle, no_restart=True)


class RayActors:
    """Starts workers in the cluster that this process is connected to.

    num_cpus: that each takes of its node. Plans' environments come beside that of the job.
    """

    def __init__(self, num_cpus: float, placement: Placement) -> None:
        self._num_cpus, self._placement = num_cpus, placement

    async def start(self, plans: Sequence[Plan]) -> list[RayActor]:
        nodes = await asyncio.to_thread(self._placement.choose, len(plans))
        return [self._started(plan, node) for plan, node in zip(plans, nodes, strict=True)]

    def _started(self, plan: Plan, node: Node) -> RayActor:
        options: dict[str, Any] = {
            "num_cpus": self._num_cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "enable_task_events": False,
            "concurrency_groups": {"run": plan.slots + SPARE_RUNS, "control": CONTROL_CALLS, "bulk": BULK_CALLS},
            # Soft: a node that has just died is no reason to fail.
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=True),
        }
        if plan.environment:
            options["runtime_env"] = {"env_vars": dict(plan.environment)}
        return RayActor(plan, ray.remote(**options)(_Actor).remote(plan), node.id, self._placement.moved)


def sealed(value: Any) -> Letter:
    """Pack a value for one call.

    As bytes, which Ray passes on as they are: packing values itself, it takes a fifth of what an execution costs the
    caller (1.16 ms instead of 0.90). Large arrays stay outside, so that Ray shares them instead of copying them.
    """
    body, buffers = _pickled(value, apart=True)
    if sum(buffer.raw().nbytes for buffer in buffers) > INLINE_BYTES:
        return body, buffers
    return _pickled(value, apart=False)[0] if buffers else body


def _pickled(value: Any, *, apart: bool) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle a value; what only this process can import, such as a class of its script, by value, as Ray does.

    apart: return the buffers of arrays beside the bytes.
    """
    buffers: list[pickle.PickleBuffer] = []
    aside = buffers.append if apart else None
    with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):
        body = pickle.dumps(value, protocol=5, buffer_callback=aside)
        if b"__main__" not in body:
            return body, buffers
    buffers.clear()
    return dumps(value, protocol=5, buffer_callback=aside), buffers


def opened(letter: Letter) -> Any:
    """The value of a letter. Raises whatever unpickling raises."""
    body, buffers = (letter, None) if isinstance(letter, bytes) else letter
    return pickle.loads(body, buffers=buffers)


def nodes() -> list[Node]:
    """The nodes that are alive, each with the CPUs that nobody has taken."""
    free: Mapping[str, Mapping[str, float]] = available_resources_per_node()
    return [
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            cpus=node["Resources"].get("CPU", 0.0),
            free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            resources=frozenset(node["Resources"]),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def object_store_bytes() -> int:
    """Size of the object store on this process's node."""
    own = ray.get_runtime_context().get_node_id()
    return next(int(node["Resources"].get("object_store_memory", 0)) for node in ray.nodes() if node["NodeID"] == own)

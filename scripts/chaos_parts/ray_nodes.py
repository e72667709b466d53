"""A Ray cluster on this machine's loopback, each raylet of which is a node."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

NODES, CPUS = 3, 2
STORE_BYTES = 100 * 1024**2
VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USE_UVLOOP": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


@contextmanager
def loopback() -> Iterator[None]:
    """Environment in which Ray binds loopback only, and keeps its files in a folder of its own."""
    # Short, as the path of a socket has room for 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        with mock.patch.dict(os.environ, {**VARIABLES, "RAY_TMPDIR": folder}):
            # Off, so that Ray leaves loopback addresses alone; somebody may have imported it without the variable.
            with mock.patch("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False):
                yield


class RayNodes:
    """The machine's Ray cluster. address: for drivers."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        node = {"num_cpus": CPUS, "node_ip_address": "127.0.0.1", "object_store_memory": STORE_BYTES}
        self._node = {**node, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=self._node)

    @property
    def address(self) -> str:
        return self._cluster.address

    @property
    def head(self) -> str:
        """Id of the node that drivers are connected to."""
        return self._cluster.head_node.node_id

    @property
    def others(self) -> list[str]:
        """Ids of the nodes that may be killed."""
        return [node.node_id for node in self._cluster.worker_nodes]

    def ids(self) -> set[str]:
        """Of the nodes that the cluster takes to be alive."""
        return {node["NodeID"] for node in self._cluster.global_state.node_table() if node["Alive"]}

    @property
    def full(self) -> bool:
        return len(self._cluster.worker_nodes) == NODES - 1

    def fill(self) -> None:
        """Start nodes in place of those that were killed, and wait until the cluster has as many as it is to have.

        To be called in the main thread, as Ray installs a signal handler.
        """
        while not self.full:
            self._cluster.add_node(wait=False, **self._node)
        while self.ids() != {self.head, *self.others}:
            time.sleep(0.1)

    def kill(self, node_id: str, *, workers: bool = True) -> None:
        """End the node's processes by SIGKILL. workers: those of its workers too, which live on for a second if not."""
        (node,) = (node for node in self._cluster.worker_nodes if node.node_id == node_id)
        raylet = self._raylet(node)
        children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split() if workers else []
        os.kill(raylet, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def _raylet(self, node: Any) -> int:
        return node.all_processes["raylet"][0].process.pid

    def stop(self) -> None:
        self._cluster.shutdown()

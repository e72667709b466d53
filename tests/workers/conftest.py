"""A Ray cluster of several nodes on this machine, on loopback, for the tests that ask for it."""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import fused

NODES, CPUS = 3, 2
STORE_BYTES = 100 * 1024**2
# Far beyond the half minute that it takes on two busy cores.
START_SECONDS, STOP_SECONDS = 180.0, 60.0
VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USE_UVLOOP": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}


class RayNodes:
    """The machine's Ray cluster, each raylet of which is a node. address: for drivers."""

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

    def ids(self) -> set[str]:
        """Of the nodes that the cluster takes to be alive."""
        return {node["NodeID"] for node in self._cluster.global_state.node_table() if node["Alive"]}

    def fill(self) -> None:
        """Start nodes in place of those that were killed, and wait until the cluster has as many as it is to have."""
        while len(self._cluster.worker_nodes) < NODES - 1:
            self._cluster.add_node(wait=False, **self._node)
        while self.ids() != {self.head, *(node.node_id for node in self._cluster.worker_nodes)}:
            time.sleep(0.1)

    def kill(self, node_id: str) -> None:
        """End the node's processes by SIGKILL, those of its workers too: left alone, they live on for a second."""
        (node,) = (node for node in self._cluster.worker_nodes if node.node_id == node_id)
        raylet = node.all_processes["raylet"][0].process.pid
        children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
        self._cluster.remove_node(node, allow_graceful=False)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    def stop(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[RayNodes]:
    """Nodes that no driver is connected to. Skips, with the reason, where they cannot be started."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    # Short, as the path of a socket has room for 107 characters.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        for name, value in {**VARIABLES, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        # Off, so that Ray leaves loopback addresses alone; somebody may have imported it without the variable.
        patch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
        started = None
        try:
            try:
                with fused(START_SECONDS):
                    started = RayNodes()
                    started.fill()
            except (Exception, pytest.fail.Exception) as error:
                pytest.skip(f"no Ray cluster can be started here: {type(error).__name__}: {error}")
            yield started
        finally:
            if started is not None:
                with fused(STOP_SECONDS), suppress(pytest.fail.Exception):
                    started.stop()


@pytest.fixture(scope="module")
def cluster(ray_nodes: RayNodes) -> Iterator[RayNodes]:
    """Three nodes of two CPUs each; this process is connected to the first, until the module's tests have run."""
    import ray

    with fused(START_SECONDS):
        ray_nodes.fill()
        ray.init(address=ray_nodes.address, _node_ip_address="127.0.0.1", log_to_driver=False, configure_logging=False)
    try:
        yield ray_nodes
    finally:
        with fused(STOP_SECONDS):
            ray.shutdown()

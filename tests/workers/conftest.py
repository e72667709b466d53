"""A Ray cluster of several nodes on this machine, on loopback, for the tests that ask for it."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Three nodes of two CPUs each; this process is connected to it."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    variables = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_USE_UVLOOP": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "3",
    }
    # Short, as the path of a socket has room for 107 characters.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray") as folder:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setenv("RAY_TMPDIR", folder)
        import ray  # it reads its variables when it is imported
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 2, "node_ip_address": "127.0.0.1", "object_store_memory": 100 * 1024**2}
        started = Cluster(initialize_head=True, head_node_args=node)
        try:
            for _ in range(2):
                started.add_node(**node)
            ray.init(
                address=started.address, _node_ip_address="127.0.0.1", log_to_driver=False, configure_logging=False
            )
            started.wait_for_nodes()
            yield started
        finally:
            ray.shutdown()
            started.shutdown()

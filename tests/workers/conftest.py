"""A Ray cluster of several nodes on this machine, on loopback, for the tests that ask for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import suppress

import pytest
from chaos_parts.ray_nodes import RayNodes, loopback

from tests.conftest import fused

# Far beyond the half minute that it takes on two busy cores.
START_SECONDS, STOP_SECONDS = 180.0, 60.0


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[RayNodes]:
    """Nodes that no driver is connected to. Skips, with the reason, where they cannot be started."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with loopback():
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

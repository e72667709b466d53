"""What each node of a Ray cluster can see of what a worker needs, asked on the node itself."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slime_agl.errors import ConfigError
from slime_agl.workers.placement import Node, connected
from slime_agl.workers.ray_actors import nodes

CONNECT_SECONDS, STATUS_SECONDS = 5.0, 60.0
PINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node, and its answers; they are empty if it gave none.

    silent: why it did not answer, else ''. version: of slime_agl there, '' if it cannot be imported.
    tokenizer: digest of the files at the path asked for, '' if there are none, None if none was asked for.
    router: why the URL asked for cannot be reached from there, '' if it can, None if none was asked for.
    skew: seconds that its clock is ahead of this one's, within `uncertainty`.
    """

    node: Node
    silent: str = ""
    version: str = ""
    tokenizer: str | None = None
    router: str | None = None
    skew: float = 0.0
    uncertainty: float = 0.0


def look_at_nodes(address: str | None, *, path: str | None, url: str | None, seconds: float) -> list[NodeView]:
    """Ask every node that is alive.

    address: of the cluster, `auto` for the one of this machine or $RAY_ADDRESS; None for the one that this process is
    connected to. path: of a tokenizer. url: of a router. seconds: for all nodes to answer.

    Raises:
        ConfigError: no cluster answers at the address.
    """
    with _connection(address):
        return _views(nodes(), path, url, time.monotonic() + seconds, seconds)


def offset(pings: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """(seconds that another clock is ahead, uncertainty) from (sent, its time, received) of several pings.

    The shortest one counts: its answer was under way for no longer than that.
    """
    sent, there, received = min(pings, key=lambda ping: ping[2] - ping[0])
    return there - (sent + received) / 2, (received - sent) / 2


@contextmanager
def _connection(address: str | None) -> Iterator[None]:
    if connected():
        yield
        return
    if address is None:
        raise ConfigError("this process is not connected to a Ray cluster; name one with --cluster ADDRESS")
    _require_cluster(address)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except Exception as error:  # Ray raises many kinds: ConnectionError, RuntimeError, ValueError, those of gRPC
        raise ConfigError(f"no Ray cluster answers at {address}: {_first_line(error)}; {_ADVICE}") from error
    try:
        yield
    finally:
        ray.shutdown()


_ADVICE = (
    "run this on a node of the cluster, or give the address that `ray status --address` works with, such as HOST:6379"
)


def _require_cluster(address: str) -> None:
    """Raise ConfigError if no cluster is there, where Ray would try for minutes and then end this process."""
    _require_listening(address)
    if "://" in address:
        return  # Ray's client, which gives up by itself
    command = [sys.executable, "-m", "ray.scripts.scripts", "status"]
    try:
        asked = subprocess.run(
            [*command, *(["--address", address] if address != "auto" else [])],
            capture_output=True,
            text=True,
            timeout=STATUS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"no Ray cluster answers at {address} within {STATUS_SECONDS:g} s; {_ADVICE}") from None
    if asked.returncode:
        words = (asked.stderr.strip() or asked.stdout.strip()).splitlines()[-1:] or [f"exit status {asked.returncode}"]
        raise ConfigError(f"no Ray cluster answers at {address}: {words[0].strip()}; {_ADVICE}")


def _require_listening(address: str) -> None:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise ConfigError(f"nobody listens at --cluster {address} ({error}); {_ADVICE}") from error


def _views(there: Sequence[Node], path: str | None, url: str | None, deadline: float, seconds: float) -> list[NodeView]:
    handles = {node.id: _probe_on(node) for node in there}
    try:
        answers = {node.id: handles[node.id].look.remote(path, url) for node in there}
        ray.wait(list(answers.values()), num_returns=len(answers), timeout=_left(deadline))
        return [_view(node, handles[node.id], answers[node.id], deadline, seconds) for node in there]
    finally:
        for handle in handles.values():
            ray.kill(handle)


def _probe_on(node: Node) -> Any:
    options: dict[str, Any] = {
        # Hard affinity, and no CPU: nodes whose CPUs are taken are asked too.
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
        "max_restarts": 0,
    }
    return ray.remote(**options)(_probe()).remote()


def _view(node: Node, handle: Any, answer: Any, deadline: float, seconds: float) -> NodeView:
    try:
        version, tokenizer, router = ray.get(answer, timeout=_left(deadline))
        pings = []
        for _ in range(PINGS):
            sent = time.time()
            there = ray.get(handle.now.remote(), timeout=_left(deadline))
            pings.append((sent, there, time.time()))
    except GetTimeoutError:
        return NodeView(node=node, silent=f"no answer within {seconds:g} s")
    except RayError as error:
        return NodeView(node=node, silent=_first_line(error))
    skew, uncertainty = offset(pings)
    return NodeView(node=node, version=version, tokenizer=tokenizer, router=router, skew=skew, uncertainty=uncertainty)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


def _probe() -> type:
    """The actor that looks, which needs only the standard library.

    A local class travels by value: it works on a node where slime_agl is not installed.
    """

    class Probe:
        def look(self, path: str | None, url: str | None) -> tuple[str, str | None, str | None]:
            tokenizer = None if path is None else self.digest(path)
            return self.version(), tokenizer, None if url is None else self.unreachable(url)

        def now(self) -> float:
            import time

            return time.time()

        def version(self) -> str:
            try:
                import slime_agl
            except ImportError:
                return ""
            return slime_agl.__version__

        def digest(self, path: str) -> str:
            """Of what decides ids and prompts; '' if the path does not exist."""
            import hashlib
            from pathlib import Path

            place = Path(path)
            if not place.exists():
                return ""
            names = (
                "tokenizer.json tokenizer.model vocab.json merges.txt tokenizer_config.json special_tokens_map.json "
                "added_tokens.json generation_config.json chat_template.jinja chat_template.json"
            )
            total = hashlib.sha256()
            for name in names.split():
                file = place / name
                if file.is_file():
                    total.update(f"{name}\0{file.stat().st_size}\0".encode() + file.read_bytes())
            return total.hexdigest()

        def unreachable(self, url: str) -> str:
            import urllib.error
            import urllib.request

            # As the engine's client, past any proxy.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                opener.open(f"{url.rstrip('/')}/health", timeout=5).close()
            except urllib.error.HTTPError:
                return ""  # it answers
            except (OSError, ValueError) as error:
                return str(getattr(error, "reason", error)) or type(error).__name__
            return ""

    return Probe

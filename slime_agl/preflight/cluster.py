"""Checks of a Ray cluster: can workers run on every node, and see what they need from there?"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from slime_agl import __version__
from slime_agl.config import Config
from slime_agl.errors import SlimeAglError
from slime_agl.report.checks import Finding
from slime_agl.workers.placement import Node, Placement

if TYPE_CHECKING:
    from slime_agl.workers.cluster import NodeView

ANSWER_SECONDS = 60.0
SKEW_SECONDS = 1.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def look_at_cluster(
    address: str | None,
    *,
    checkpoint: str | None,
    router: str | None,
    config: Config | None,
    seconds: float = ANSWER_SECONDS,
) -> list[Finding]:
    """Ask every node of the cluster, and judge the answers.

    address: as for `look_at_nodes`. checkpoint: slime's --hf-checkpoint. config: whose workers must fit.
    """
    if importlib.util.find_spec("ray") is None:
        words = (
            "Ray is not installed here, so no cluster can be asked: pip install ray, in the version the cluster runs"
        )
        return [Finding("cluster", "fail", words)]
    from slime_agl.workers.cluster import look_at_nodes

    try:
        views = look_at_nodes(address, path=checkpoint, url=router, seconds=seconds)
    except SlimeAglError as error:
        return [Finding("cluster", "fail", str(error))]
    return list(judge_cluster(views, checkpoint=checkpoint, router=router, config=config))


def judge_cluster(
    views: Sequence[NodeView], *, checkpoint: str | None, router: str | None, config: Config | None
) -> Iterator[Finding]:
    """Yield a finding per question, over all nodes."""
    yield _nodes([view.node for view in views])
    yield from _room([view.node for view in views], config)
    silent = [f"{_at(view)}: {view.silent}" for view in views if view.silent]
    if silent:
        words = f"{_many(silent)}; see `ray status` and the raylet's log there, or take the node out of the cluster"
        yield Finding("nodes answer", "fail", words)
    answered = [view for view in views if not view.silent]
    if not answered:
        return
    yield _versions(answered)
    if checkpoint is not None:
        yield _tokenizer(answered, checkpoint)
    if router is not None:
        yield _router(answered, router)
    yield _clocks(answered)


def _nodes(nodes: Sequence[Node]) -> Finding:
    free, cpus = sum(node.free_cpus for node in nodes), sum(node.cpus for node in nodes)
    words = f"{_all(nodes)}, {free:g} of {cpus:g} CPUs free: {_many([str(node) for node in nodes])}"
    if free < 1:
        advice = "workers take whole CPUs unless agl.workers.num_cpus is lower: leave some to them, or add a node"
        return Finding("cluster", "look", f"{words}; {advice}")
    return Finding("cluster", "pass", words)


def _room(nodes: Sequence[Node], config: Config | None) -> Iterator[Finding]:
    """Yield whether the configured workers can be placed."""
    if config is None or config.workers.count == 0:
        return
    placement = Placement(config.workers, lambda: nodes)
    count = 1 if config.workers.count == "auto" else config.workers.count
    try:
        chosen = Counter(node.id for node in placement.choose(count))
    except SlimeAglError as error:
        yield Finding("agl.workers", "fail", str(error))
        return
    yield Finding("agl.workers", "pass", f"count {config.workers.count} fits, on {len(chosen)} of {_all(nodes)}")


def _versions(views: Sequence[NodeView]) -> Finding:
    missing = [_at(view) for view in views if not view.version]
    others = [f"{_at(view)} has {view.version}" for view in views if view.version not in ("", __version__)]
    if missing:
        words = f"cannot be imported on {_many(missing)}; install it there, or carry it in the Ray job's runtime_env"
        return Finding("slime_agl on each node", "fail", words)
    if others:
        words = f"{_many(others)}, and this machine {__version__}; install the same version everywhere"
        return Finding("slime_agl on each node", "fail", words)
    return Finding("slime_agl on each node", "pass", f"{__version__} on {_all(views)}")


def _tokenizer(views: Sequence[NodeView], path: str) -> Finding:
    name = "tokenizer on each node"
    missing = [_at(view) for view in views if not view.tokenizer]
    if len(missing) == len(views) and _is_hub_name(path):
        words = f"{path} is not a path: each node fetches it by name; put it in one directory that all nodes see"
        return Finding(name, "look", words)
    if missing:
        words = f"{path} does not exist on {_many(missing)}; copy it there, or name a directory that all nodes see"
        return Finding(name, "fail", words)
    digests = Counter(view.tokenizer for view in views)
    usual = digests.most_common(1)[0][0]
    others = [_at(view) for view in views if view.tokenizer != usual]
    if others:
        words = f"{path} holds other files on {_many(others)} than elsewhere; copy the same tokenizer to all nodes"
        return Finding(name, "fail", words)
    return Finding(name, "pass", f"{path} is the same on {_all(views)}")


def _is_hub_name(path: str) -> bool:
    return not path.startswith((".", "/", "~")) and path.count("/") <= 1


def _router(views: Sequence[NodeView], url: str) -> Finding:
    name = "router from each node"
    failed = [f"{_at(view)}: {view.router}" for view in views if view.router]
    if not failed:
        return Finding(name, "pass", f"{url} is reached from {_all(views)}")
    advice = "open its port to these nodes, and check that the router binds an address they can reach"
    if urlsplit(url).hostname in LOOPBACK:
        advice = "its address is loopback, and means each node itself: give the router an address of its node"
    return Finding(name, "fail", f"{url} is not reached from {_many(failed)}; {advice}")


def _clocks(views: Sequence[NodeView]) -> Finding:
    name = "clocks"
    off = [
        f"{_at(view)} is {view.skew:+.2f} s off (±{view.uncertainty:.2f})"
        for view in views
        if abs(view.skew) - view.uncertainty > SKEW_SECONDS
    ]
    if off:
        words = (
            f"{_many(off)} against this machine; times in spans and records will be wrong by that: run chrony or ntpd"
        )
        return Finding(name, "look", words)
    worst = max(abs(view.skew) for view in views)
    return Finding(name, "pass", f"{_all(views)} within {max(worst, 0.001):.3f} s of this machine")


def _at(view: NodeView) -> str:
    """Two nodes may share an address: the id tells them apart."""
    return f"{view.node.address} ({view.node.id[:8]})"


def _all(nodes: Sequence[object]) -> str:
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)}"


def _many(told: Sequence[str]) -> str:
    return ", ".join(told[:8]) + (f" and {len(told) - 8} more" if len(told) > 8 else "")

"""Checks of this machine: Python, package versions, slime, loopback."""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import os
import platform
import socket
from collections.abc import Iterator
from pathlib import Path

from slime_agl import __version__
from slime_agl.host import slime_available, where
from slime_agl.report.checks import Finding

FLAGS = (
    "--rollout-function-path",
    "--custom-rm-path",
    "--custom-config-path",
    "--custom-reward-post-process-path",
    "--data-source-path",
    "--custom-generate-function-path",
)
# distribution -> (tested versions, purpose)
TESTED = {
    "agentlightning": ("0.3.", "required"),
    "ray": ("2.", "optional: workers on the nodes of a cluster"),
    "sglang": ("0.5.15", "optional: its parsers of tool calls and reasoning"),
    "sglang-router": ("0.3.", "optional: the router of the local engine"),
    "torch": ("2.", "optional: the local engine"),
    "transformers": ("5.", "required"),
    "uvloop": ("0.", "optional: a faster event loop"),
}


def look_at_machine(slime: Path | None) -> Iterator[Finding]:
    """Yield a finding per check. slime: a checkout to look at, if the user named one."""
    yield Finding("python", "pass", f"{platform.python_version()} on {platform.system()}, slime_agl {__version__}")
    for name, (tested, purpose) in TESTED.items():
        yield _version(name, tested, purpose)
    yield _slime(slime)
    if slime_available():
        yield _flags()
    yield _loopback()


def _version(name: str, tested: str, purpose: str) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if purpose == "required":
            return Finding(name, "fail", f"pip install {name} ({purpose})")
        return Finding(name, "pass", f"not installed ({purpose})")
    if version.startswith(tested):
        return Finding(name, "pass", version)
    verdict = "fail" if name == "agentlightning" else "look"
    return Finding(name, verdict, f"{version}; tested with {tested}*: install one of these if something breaks")


def _slime(checkout: Path | None) -> Finding:
    if slime_available():
        return Finding("slime", "pass", where())
    if checkout is not None:
        known = (checkout / "slime" / "utils" / "types.py").is_file()
        return Finding(
            "slime",
            "fail",
            f"slime at {checkout} cannot be imported: install its dependencies (torch among them)"
            if known
            else f"{checkout} has no slime/utils/types.py; name the directory that holds train.py",
        )
    if importlib.util.find_spec("slime") is not None:
        return Finding("slime", "fail", "an unrelated package called slime is installed: pip uninstall slime")
    return Finding("slime", "look", "not importable, stand-ins are used; put a checkout on PYTHONPATH to train")


def _flags() -> Finding:
    spec = importlib.util.find_spec("slime.utils")
    places = [Path(place, "arguments.py") for place in (spec.submodule_search_locations or () if spec else ())]
    text = "".join(place.read_text(encoding="utf-8") for place in places if place.is_file())
    missing = [flag for flag in FLAGS if f'"{flag}"' not in text]
    if missing:
        return Finding("slime's flags", "fail", f"this slime does not know {', '.join(missing)}: update it")
    return Finding("slime's flags", "pass", f"all {len(FLAGS)} are known")


def _loopback() -> Finding:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        return Finding("loopback", "fail", f"127.0.0.1 cannot be bound ({error.strerror}); the gateway needs it")
    proxies = [name for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if os.environ.get(name)]
    exempt = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    if proxies and not {"127.0.0.1", "*"} & set(exempt.split(",")):
        words = f"{proxies[0]} is set: agents' clients would use the proxy; export no_proxy=127.0.0.1"
        return Finding("loopback", "fail", words)
    return Finding("loopback", "pass", "can be bound, and no proxy intercepts it")

"""The backends that tests run on."""

from __future__ import annotations

import functools
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slime_agl.errors import SandboxError
from slime_agl.sandbox.adapted import AdaptedBackend
from slime_agl.sandbox.bwrap import BwrapBackend
from slime_agl.sandbox.containers import Container, ContainerBackend
from slime_agl.sandbox.engines import DockerLike
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.kept import KeptBackend
from slime_agl.sandbox.local import LocalBackend
from slime_agl.sandbox.protocol import SandboxSpec
from slime_agl.sandbox.reach import Reach

# An image that podman has here; containers are tested for real only where one is named.
IMAGE = os.environ.get("SLIME_AGL_TEST_IMAGE", "")
KEPT: dict[str, type[KeptBackend]] = {"bwrap": BwrapBackend, "local": LocalBackend}
KINDS = (*KEPT, "adapted", "podman")


class Podman(ContainerBackend):
    def sandbox(self, spec: SandboxSpec) -> Container:
        return super().sandbox(replace(spec, image=spec.image or IMAGE))


@functools.cache
def unusable(name: str) -> str:
    """Why a backend cannot run on this machine, '' if it can."""
    if name == "podman":
        return "" if IMAGE and shutil.which("podman") else "SLIME_AGL_TEST_IMAGE names no image of podman's"
    try:
        KEPT["bwrap" if name == "adapted" else name].check()
    except SandboxError as error:
        return str(error)
    return ""


def made(name: str, folder: Path, reach: Reach | None = None) -> Any:
    if reason := unusable(name):
        pytest.skip(f"{name}: {reason}")
    home = Home(str(folder / "sandboxes"))
    if name == "podman":
        return Podman(DockerLike("podman"), home, reach or Reach())
    if name == "adapted":
        return AdaptedBackend("slime_like.SlimeLike", home)
    return KEPT[name](home, reach or Reach())

"""Limits of a whole sandbox by control groups, where this user may make them (mostly root's).

Version 2 needs a writable root whose children have the controllers; version 1 a writable folder per controller. Where
neither is there, a sandbox has only the limits of single processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

from slime_agl.sandbox.protocol import Limits

logger = logging.getLogger(__name__)

TOP = Path("/sys/fs/cgroup")
PREFIX = "slime_agl."
PERIOD_US = 100_000


def create(name: str, limits: Limits, top: Path = TOP) -> Cgroup | None:
    """Make the control groups for limits; None if there are none to set, or this user cannot."""
    folders: dict[str, Path] = {}
    for controller, values in _wanted(limits, unified=(top / "cgroup.controllers").exists()).items():
        folder = _folder(controller, name, top)
        try:
            folder.mkdir(exist_ok=True)
            for file, value in values.items():
                (folder / file).write_text(value)
            folders[controller] = folder
        except OSError as error:
            logger.debug("no control group for %s: %s", controller, error)
            if folder not in folders.values():
                with contextlib.suppress(OSError):
                    folder.rmdir()
    return Cgroup(folders) if folders else None


class Cgroup:
    """limits: the controllers that hold for it."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = set(folders.values())
        self.limits = set(folders)

    def add(self, pid: int) -> None:
        """Put a process, and what it starts from now on, under the limits."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove the groups; their processes must have ended. Waits a moment for the kernel to notice that."""
        for folder in self._folders:
            _remove(folder)


def remove(name: str, top: Path = TOP) -> None:
    """Remove the groups of a dead driver's sandbox."""
    for controller in ("pids", "memory", "cpu"):
        folder = _folder(controller, name, top)
        if folder.exists():
            _remove(folder)


def _remove(folder: Path) -> None:
    for _ in range(50):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
    logger.warning("the control group %s is busy, it is left", folder)


def _folder(controller: str, name: str, top: Path) -> Path:
    if (top / "cgroup.controllers").exists():
        return top / f"{PREFIX}{name}"
    return top / controller / f"{PREFIX}{name}"


def _wanted(limits: Limits, *, unified: bool) -> dict[str, dict[str, str]]:
    """Files to write and their contents, by controller."""
    wanted: dict[str, dict[str, str]] = {}
    if limits.processes is not None:
        wanted["pids"] = {"pids.max": str(limits.processes)}
    if limits.memory_mb is not None:
        size = str(limits.memory_mb << 20)
        wanted["memory"] = {"memory.max": size} if unified else {"memory.limit_in_bytes": size}
    if limits.cpus is not None:
        quota = str(int(limits.cpus * PERIOD_US))
        wanted["cpu"] = {"cpu.max": f"{quota} {PERIOD_US}"} if unified else {"cpu.cfs_quota_us": quota}
    return wanted


def usable(top: Path = TOP) -> bool:
    """True if this user can limit the processes of a sandbox so."""
    return os.access(top / "pids", os.W_OK) or os.access(top / "cgroup.subtree_control", os.W_OK)

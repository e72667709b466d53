"""The folders of sandboxes on this machine, and what dead drivers left of theirs.

BASE/DRIVER/SANDBOX/root is a sandbox's file system, beside its labels. A driver holds a lock on BASE/DRIVER/lock while
it lives, so that a later one finds what was left, by the folder and by the environment of its processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from slime_agl.errors import SandboxError
from slime_agl.sandbox import cgroups
from slime_agl.sandbox.inside.processes import end_all, marked

VARIABLE = "SLIME_AGL_SANDBOX"
LABELS, LOCK, ROOT = "labels.json", "lock", "root"


class Home:
    """This driver's folder. base: '' for a private folder below the system's temporary one."""

    def __init__(self, base: str = "") -> None:
        self.base = Path(base) if base else Path(tempfile.gettempdir()) / f"slime_agl-{os.getuid()}" / "sandboxes"
        self.driver = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._lock = -1
        self._claiming = threading.Lock()  # sandboxes are made in several threads

    def new(self, labels: Mapping[str, str]) -> Path:
        """Make the folder of a sandbox, whose name is the sandbox's id.

        Raises:
            SandboxError: the base is another user's, or cannot be written.
        """
        try:
            driver, _, own = self.name().rpartition("-")
            folder = self.base / driver / own
            (folder / ROOT).mkdir(parents=True)
            self.label(folder, labels)
        except OSError as error:
            raise SandboxError(
                f"cannot make a sandbox's folder in {self.base}: {error.strerror or error}; "
                "set agl.sandbox.dir to a folder of yours"
            ) from error
        return folder

    def name(self) -> str:
        """Return a new name, the driver's and one of its own, for a sandbox without a folder; claims the lock."""
        with self._claiming:
            if self._lock < 0:
                self._claim()
        return f"{self.driver}-{secrets.token_hex(6)}"

    @property
    def identity(self) -> str:
        """This machine and this base, for labels of sandboxes that other machines see, too."""
        return f"{socket.gethostname()}:{self.base}"

    def alive(self, driver: str) -> bool:
        """True if the process of a driver that shares this base lives."""
        if driver == self.driver:
            return True
        try:
            lock = os.open(self.base / driver / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(lock)

    def label(self, folder: Path, labels: Mapping[str, str]) -> None:
        """Write the labels of a sandbox, by which a later driver finds it."""
        (folder / LABELS).write_text(json.dumps(dict(labels)))

    def mark(self, folder: Path) -> str:
        """Value of VARIABLE in the environment of a sandbox's processes."""
        return f"{self.driver}/{folder.name}"

    def close(self) -> None:
        """Remove this driver's folder. Idempotent."""
        if self._lock >= 0:
            remove(self.base / self.driver)
            os.close(self._lock)
            self._lock = -1

    def reap(self, labels: Mapping[str, str]) -> int:
        """End the sandboxes that dead drivers left, among those with these labels; return how many."""
        count = 0
        with contextlib.suppress(FileNotFoundError):
            for folder in sorted(self.base.iterdir()):
                if folder.name != self.driver and folder.is_dir() and not folder.is_symlink():
                    count += _reap(folder, labels)
        return count

    def _claim(self) -> None:
        self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.base, self.base.parent):
            found = os.lstat(folder)
            if stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid():
                if folder == self.base:
                    raise PermissionError(1, f"{folder} belongs to user {found.st_uid}, not {os.getuid()}")
        mine = self.base / self.driver
        mine.mkdir(mode=0o700)
        self._lock = os.open(mine / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Not lockf, whose locks a second driver in this process would take, and drop by looking at them.
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove(folder: Path) -> None:
    """Remove a folder, however deep it is and whatever modes its folders have."""
    with contextlib.suppress(FileNotFoundError):
        if _ran("rm", "-rf", "--", str(folder)) != 0:
            _ran("chmod", "-R", "u+rwx", str(folder))
            _ran("rm", "-rf", "--", str(folder))
        return
    shutil.rmtree(folder, ignore_errors=True)


def _ran(*argv: str) -> int:
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


def _reap(driver: Path, labels: Mapping[str, str]) -> int:
    """End a driver's sandboxes if it is dead. The lock is held meanwhile, so that no other one reaps it too."""
    try:
        lock = os.open(driver / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0  # just being made, or removed
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        count = 0
        for folder in [entry for entry in driver.iterdir() if entry.is_dir()]:
            if labels.items() <= _labels(folder).items():
                mark = f"{VARIABLE}={driver.name}/{folder.name}".encode() + b"\0"
                end_all(lambda mark=mark: marked(mark) - {os.getpid()})
                cgroups.remove(f"{driver.name}.{folder.name}")
                remove(folder)
                count += 1
        if {entry.name for entry in driver.iterdir()} == {LOCK}:
            remove(driver)
        return count
    except BlockingIOError:
        return 0  # alive
    finally:
        os.close(lock)


def _labels(folder: Path) -> dict[str, str]:
    try:
        return json.loads((folder / LABELS).read_text())
    except (OSError, ValueError):
        return {}

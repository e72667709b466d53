"""Install programs: once per version on this machine, or in each sandbox that does not share its files.

A folder of the cache is used once it has a stamp, so a half-made one is built again. Sandboxes get it, and the
interpreter that it needs, read-only and under the path that it has here: scripts of an environment name their path.
"""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from slime_agl.errors import SandboxError
from slime_agl.harness.program import Program
from slime_agl.harness.pythons import base_of, interpreter, venv_inside

logger = logging.getLogger(__name__)

INSTALL_SECONDS = 1800.0
SHOWN = 1500
STAMP = ".installed"
# Folder of an installation inside a sandbox that has files of its own.
INSIDE = "/opt/slime_agl"


@dataclass(frozen=True, slots=True)
class Installed:
    """A program that is ready. bin: folder with its executable, '' for one that the sandbox has. mounts: see
    SandboxSpec.
    """

    bin: str = ""
    mounts: Mapping[str, Path] = field(default_factory=dict)


class Installer:
    """Installs programs on this machine. cache: folder that holds them, shared by all processes of the user."""

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = cache or cache_folder()
        self._running: dict[tuple[str, ...], asyncio.Task[Installed]] = {}

    async def install(self, program: Program) -> Installed:
        """Return a program's installation, made on first use. Concurrent callers share it.

        Raises:
            SandboxError: its registry's client is missing or fails; has the end of its output.
        """
        key = (program.name, program.version, *program.requirements())
        task = self._running.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            # In a context of its own: what an attempt starts ends with it, and this outlives the attempt.
            task = asyncio.get_running_loop().create_task(
                asyncio.to_thread(self._install, program), context=contextvars.Context()
            )
            self._running[key] = task
        return await asyncio.shield(task)

    def _install(self, program: Program) -> Installed:
        if not program.registry:
            return Installed()
        if _in_this_environment(program):
            return Installed(str(Path(sys.prefix) / "bin"), _mounts(Path(sys.prefix), Path(sys.base_prefix)))
        place = self._cache / f"{program.name}-{program.version}"
        self._cache.mkdir(parents=True, exist_ok=True)
        with (self._cache / f"{place.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (place / STAMP).is_file():
                shutil.rmtree(place, ignore_errors=True)
                logger.info(
                    "installing %s %s from %s into %s, once", program.name, program.version, program.registry, place
                )
                self._build(program, place)
                (place / STAMP).touch()
        if program.registry == "npm":
            return Installed(str(place / "node_modules" / ".bin"), _mounts(place, _home_of("node")))
        return Installed(str(place / "bin"), _mounts(place, base_of(place)))

    def _build(self, program: Program, place: Path) -> None:
        if program.registry == "npm":
            place.mkdir()
            _run(["npm", "install", "--prefix", str(place), "--no-audit", "--no-fund", *program.requirements()])
            return
        _run([interpreter(program), "-m", "venv", str(place)])
        _run([str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *program.requirements()])


def cache_folder() -> Path:
    """The folder of installed programs: in $XDG_CACHE_HOME, else in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "slime_agl" / "harness"


def script_inside(program: Program) -> str:
    """Shell lines that install a program in a sandbox with files of its own, unless its image has that version."""
    if not program.registry:
        return program.install
    packages = " ".join(f"'{requirement}'" for requirement in program.requirements())
    folder = f"{INSIDE}/{program.name}"
    if program.registry == "npm":
        missing = f"apt-get update && apt-get install -y npm || apk add npm && npm install --prefix {folder} {packages}"
        make = f"if command -v npm; then npm install --prefix {folder} {packages}; else {missing}; fi"
    else:
        make = f"{venv_inside(program, folder)} && {folder}/bin/python -m pip install --quiet {packages}"
    return f"{program.executable} --version 2>/dev/null | grep -qF '{program.version}' || {{ {make}; }}"


def bin_inside(program: Program) -> str:
    """Folder of the executable after `script_inside`."""
    if not program.registry:
        return ""
    return f"{INSIDE}/{program.name}/" + ("node_modules/.bin" if program.registry == "npm" else "bin")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except FileNotFoundError as error:
        raise SandboxError(f"{command[0]} is not installed here, it is needed to install the harness") from error
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"{' '.join(command)} took longer than {INSTALL_SECONDS:g} s") from error
    if done.returncode:
        raise SandboxError(
            f"{' '.join(command)} ended with status {done.returncode}: {(done.stderr or done.stdout)[-SHOWN:]}"
        )


def _home_of(name: str) -> Path:
    """Folder above the `bin` that holds an executable."""
    found = shutil.which(name)
    if found is None:
        raise SandboxError(f"{name} is not installed here, the harness needs it to run")
    return Path(found).resolve().parent.parent


def _mounts(*folders: Path) -> dict[str, Path]:
    """Folders under their own paths; those of the system are there already."""
    return {str(folder): folder for folder in folders if Path("/usr") not in (folder, *folder.parents)}


def installed_here(program: Program, cache: Path | None = None) -> bool:
    """Return True if a program needs no download to run on this machine."""
    place = (cache or cache_folder()) / f"{program.name}-{program.version}"
    return not program.registry or _in_this_environment(program) or (place / STAMP).is_file()


def _in_this_environment(program: Program) -> bool:
    """Return True if the Python environment of this process has the program, in its version."""
    if program.registry != "pip" or not (Path(sys.prefix) / "bin" / program.executable).is_file():
        return False
    name = program.packages[0].partition("==")[0]
    try:
        return metadata.version(name) == program.version
    except metadata.PackageNotFoundError:
        return False

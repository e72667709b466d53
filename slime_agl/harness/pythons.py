"""Find a Python for a program of PyPI that takes only some versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from slime_agl.errors import SandboxError
from slime_agl.harness.program import Program

# Folders or files of further interpreters, separated as in PATH.
SETTING = "SLIME_AGL_PYTHONS"
SECONDS = 30.0
SAYS = "import sys; print('%d.%d' % sys.version_info[:2], getattr(sys, '_base_executable', sys.executable))"


def interpreter(program: Program) -> str:
    """The interpreter for a program's environment: this process's own, if the program takes its version.

    Else the first that answers with such a version among those that $SLIME_AGL_PYTHONS names, on PATH, and below
    pyenv's and uv's folders.

    Raises:
        SandboxError: none does; names the versions.
    """
    own = getattr(sys, "_base_executable", None) or sys.executable
    if not program.python or "{}.{}".format(*sys.version_info) in program.python:
        return own
    for version in program.python:
        for path in _candidates(version):
            said = _said(path)
            if said and said[0] == version:
                return said[1]
    raise SandboxError(
        f"{program.name} {program.version} needs Python {' or '.join(program.python)} and none was found on PATH, in "
        f"pyenv's or in uv's folders; this process runs {'{}.{}'.format(*sys.version_info)}. Install one, or set "
        f"{SETTING} to its path"
    )


def base_of(environment: Path) -> Path:
    """The folder of the interpreter that an environment was made with.

    Raises:
        SandboxError: the environment does not say.
    """
    for line in (environment / "pyvenv.cfg").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home":
            return Path(value.strip()).parent
    raise SandboxError(f"{environment / 'pyvenv.cfg'} names no interpreter; remove the folder to install it again")


def venv_inside(program: Program, folder: str) -> str:
    """Shell lines that make an environment in a sandbox with files of its own; they say so if its image lacks the
    version.
    """
    if not program.python:
        return f"python3 -m venv {folder}"
    names = " ".join([*(f"python{version}" for version in program.python), "python3"])
    fits = f"import sys; sys.exit('{{}}.{{}}'.format(*sys.version_info) not in {program.python!r})"
    needs = f"{program.name} needs Python {' or '.join(program.python)}, and the image has none"
    find = f'for python in {names}; do "$python" -c "{fits}" 2>/dev/null && break; python=; done'
    return f'{find}; [ -n "$python" ] || {{ echo "{needs}" >&2; exit 1; }}; "$python" -m venv {folder}'


def _candidates(version: str) -> Iterator[str]:
    name = f"python{version}"
    for given in filter(None, os.environ.get(SETTING, "").split(os.pathsep)):
        yield str(Path(given) / name) if Path(given).is_dir() else given
    found = shutil.which(name)
    if found:
        yield found
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local" / "share" / "uv" / "python")
    for folder in (pyenv, uv):
        for path in sorted(folder.glob(f"*/bin/{name}")):
            yield str(path)


def _said(path: str) -> tuple[str, str] | None:
    """The version and the path that an interpreter tells of itself; None if it does not run, as pyenv's stand-ins do
    that have no version chosen.
    """
    try:
        done = subprocess.run([path, "-c", SAYS], capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    version, _, own = done.stdout.strip().partition(" ")
    return version, own or path

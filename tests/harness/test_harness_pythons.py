"""Programs that take only some versions of Python: which interpreter is found, and what is said without one."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_agl.errors import SandboxError
from slime_agl.harness.catalog import PROGRAMS
from slime_agl.harness.install import script_inside
from slime_agl.harness.pythons import SETTING, base_of, interpreter

# A version that no machine has, so that only the stand-ins of a test answer with it.
PROGRAM = dataclasses.replace(PROGRAMS["openhands"], python=("3.99",))


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (SETTING, "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def stand_in(path: Path, answer: str = "3.99", *, status: int = 0) -> Path:
    """An executable that answers as an interpreter of this version does, and notes what else it is asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    note = f'case "$*" in *print*) echo "{answer} $0";; *venv*) echo "$@" >> "{path.parent}/asked";; esac'
    path.write_text(f"#!/bin/sh\n{note}\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_a_program_without_versions_takes_the_python_of_this_process():
    own = getattr(sys, "_base_executable", None) or sys.executable
    assert interpreter(PROGRAMS["aider"]) == own
    here = dataclasses.replace(PROGRAM, python=("3.99", "{}.{}".format(*sys.version_info)))
    assert interpreter(here) == own


def test_an_interpreter_that_does_not_run_is_passed_over(monkeypatch, tmp_path):
    stand_in(tmp_path / "shims" / "python3.99", status=1)
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(SandboxError, match=rf"openhands .* needs Python 3\.99 .* set {SETTING}"):
        interpreter(PROGRAM)
    real = stand_in(tmp_path / "home" / ".pyenv" / "versions" / "3.99.1" / "bin" / "python3.99")
    assert interpreter(PROGRAM) == str(real)


def test_one_of_another_version_is_passed_over_and_the_setting_goes_first(monkeypatch, tmp_path):
    on_path = stand_in(tmp_path / "bin" / "python3.99")
    monkeypatch.setenv("PATH", f"{on_path.parent}{os.pathsep}{os.environ['PATH']}")
    assert interpreter(PROGRAM) == str(on_path)
    other, named = stand_in(tmp_path / "other" / "python", "3.98"), stand_in(tmp_path / "named" / "python3.99")
    monkeypatch.setenv(SETTING, f"{other}{os.pathsep}{named.parent}")
    assert interpreter(PROGRAM) == str(named)


def test_an_environment_tells_its_interpreters_folder(tmp_path):
    (tmp_path / "pyvenv.cfg").write_text("home = /opt/python/bin\nversion = 3.99.1\n")
    assert base_of(tmp_path) == Path("/opt/python")
    (tmp_path / "pyvenv.cfg").write_text("version = 3.99.1\n")
    with pytest.raises(SandboxError, match="names no interpreter"):
        base_of(tmp_path)


def in_an_image(path: Path) -> subprocess.CompletedProcess[str]:
    script = script_inside(PROGRAM)
    return subprocess.run(["/bin/sh", "-c", script], env={"PATH": str(path)}, capture_output=True, text=True)


def test_an_image_without_the_version_is_told_so(tmp_path):
    stand_in(tmp_path / "python3", status=1)
    done = in_an_image(tmp_path)
    assert done.returncode == 1 and "openhands needs Python 3.99, and the image has none" in done.stderr
    assert not (tmp_path / "asked").exists()


def test_an_image_installs_with_the_version_that_it_has(tmp_path):
    stand_in(tmp_path / "python3", status=1)
    stand_in(tmp_path / "python3.99")
    in_an_image(tmp_path)
    assert (tmp_path / "asked").read_text() == "-m venv /opt/slime_agl/openhands\n"

"""Shell commands that do with `exec` what a backend has no call for."""

from __future__ import annotations

import posixpath
import shlex
import stat
import tarfile
from pathlib import Path
from typing import BinaryIO

from slime_agl.errors import SandboxError
from slime_agl.sandbox.protocol import checked

READ_BYTES = 64 << 20
# Environment variable of a command and all that it starts.
JOB = "SANDBOX_PROGRAM"


def prepared(cmd: str, workdir: str) -> str:
    """A command that starts in a folder; bash runs it where there is one."""
    return f"cd {shlex.quote(workdir)} && exec $(command -v bash || echo sh) -c {shlex.quote(checked(cmd))}"


def write(path: str) -> str:
    """Stdin to a file."""
    return f"mkdir -p {shlex.quote(posixpath.dirname(path))} && cat > {shlex.quote(path)}"


def read(path: str) -> str:
    """A file to stdout; fails if there is none."""
    return f"[ -f {shlex.quote(path)} ] && head -c {READ_BYTES} {shlex.quote(path)}"


def unpack(path: str, source: str = "-") -> str:
    """A tar archive, of stdin or a file, into a folder."""
    return f"mkdir -p {shlex.quote(path)} && tar -x -p -f {shlex.quote(source)} -C {shlex.quote(path)}"


def kill(job: str) -> str:
    """Kill the processes whose environment names a job, a word that occurs nowhere else, until there are none."""
    return (
        "while :; do found=; for at in /proc/[0-9]*; do "
        f"if grep -qs {JOB}={job} $at/environ; then found=1; kill -9 ${{at#/proc/}}; fi; "
        'done; [ -n "$found" ] || break; done 2>/dev/null'
    )


def pack(out: BinaryIO, path: Path) -> None:
    """Write a folder, or a file under its own name, as a tar archive that root owns; devices and sockets left out.

    Raises:
        SandboxError: something of it cannot be read.
    """
    try:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.add(
                str(path.resolve() if path.is_symlink() else path), "." if path.is_dir() else path.name, filter=_plain
            )
    except OSError as error:
        raise SandboxError(f"cannot read {path} to put it into a sandbox: {error.strerror or error}") from error
    out.flush()
    out.seek(0)


def mode_of(path: Path) -> str:
    """The octal mode of a file, for chmod."""
    return f"{stat.S_IMODE(path.stat().st_mode):o}"


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member

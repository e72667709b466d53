"""The `bwrap` backend: bubblewrap gives each sandbox namespaces, a root and an unprivileged user of its own.

It needs Linux with user namespaces, as root or not. Commands see this machine's `/usr` (or a root file system in its
place) and a few public files of `/etc`, read-only; everything else is the sandbox's own. They reach the gateway through
a socket that listens on their loopback, and no other address; under `open`, the host's network instead, with its
abstract sockets, for installation only: a sandbox is created with it or without.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from slime_agl.errors import SandboxError
from slime_agl.sandbox import seccomp
from slime_agl.sandbox.home import ROOT
from slime_agl.sandbox.kept import INSIDE, PACKAGE, USER, USER_HOME, KeptBackend, Launch, keeper_argv, own_python
from slime_agl.sandbox.protocol import Limits, Network, SandboxSpec

UID = "1000"
PACKAGES = "/.agl"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where a distribution keeps its programs, beside /usr; most are links into it.
PROGRAM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "mime.types", "pki", "protocols", "services", "ssl", "terminfo", "timezone",
)  # fmt: skip
# Files of these accept writes from whoever has root's number outside, and reach past every namespace: core_pattern
# names a program that the host's kernel starts as root.
PROC = ("acpi", "bus", "driver", "fs", "irq", "mtrr", "scsi", "sys", "sysrq-trigger", "tty")
SHM_BYTES = 256 << 20
SWITCHES = {
    "kernel.unprivileged_userns_clone": ("0", "set it to 1"),
    "user.max_user_namespaces": ("0", "set it to 10000"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "set it to 0, or give bwrap an AppArmor profile"),
}


class BwrapBackend(KeptBackend):
    name = "bwrap"
    isolates = True

    @classmethod
    def check(cls) -> None:
        program = _program()
        ran = subprocess.run(
            [program, "--ro-bind", "/", "/", "--unshare-user", "--unshare-net", "--unshare-pid", "--proc", "/proc",
             "--dev", "/dev", "true"],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if ran.returncode:
            raise SandboxError(f"bwrap cannot make a sandbox here ({ran.stderr.strip()[:300]}); {_advice()}")

    @property
    def limits_processes(self) -> bool:
        return os.geteuid() != 0 or super().limits_processes

    def launch(self, spec: SandboxSpec, folder: Path, control: int) -> Launch:
        program, root = _program(), folder / ROOT
        told, info = os.pipe()
        with tempfile.TemporaryFile() as file:
            file.write(seccomp.contained())
            file.seek(0)
            rules = os.dup(file.fileno())
        argv = [
            program, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
            *(() if spec.network == "open" else ("--unshare-net",)), *_newest_switches(program),
            "--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL",
            "--uid", UID, "--gid", UID, "--hostname", "sandbox", "--clearenv",
            "--seccomp", str(rules), "--info-fd", str(info),
            *_root(spec, root),
        ]  # fmt: skip
        argv += [*_system(spec.image, root), *_kernel()]
        python, bound = _python(spec.image)
        argv += [*bound, "--ro-bind", str(INSIDE), f"{PACKAGES}/{PACKAGE.replace('.', '/')}"]
        for switch, folders in (("--ro-bind", spec.mounts), ("--bind", spec.shared)):
            for inside, outside in folders.items():
                argv += [switch, str(outside.resolve()), inside]
        argv += ["--chdir", "/", "--", *keeper_argv(PACKAGES, control, python)]
        env = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": USER_HOME, "USER": USER, "SANDBOX_ROOT": "", "TMPDIR": "/tmp"}
        return Launch(argv=argv, env=env, root="/", fds=(rules, info), info=told)

    def path(self, root: Path, sandbox_path: str) -> str:
        return sandbox_path

    def check_network(self, before: Network, after: Network) -> None:
        if "open" in (before, after) and before != after:
            raise SandboxError(
                f"a bwrap sandbox keeps the network namespace it was made in, it cannot go from {before} to {after}; "
                "install in one with an open network, into a folder that others mount"
            )

    def limits(self, limits: Limits) -> dict[str, int]:
        found = super().limits(limits)
        found.pop("RLIMIT_FSIZE", None)  # the whole file system has that size
        if limits.processes is not None and os.geteuid() != 0:
            found["RLIMIT_NPROC"] = limits.processes  # counted per user namespace
        return found

    def unlimited(self, limits: Limits, grouped: set[str]) -> list[str]:
        return super().unlimited(limits, grouped | ({"pids"} if os.geteuid() != 0 else set()))


def _root(spec: SandboxSpec, root: Path) -> list[str]:
    """Make the sandbox's own files, on disk or, with a limit of storage, in memory."""
    files = {
        "passwd": f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:{UID}:{UID}::{USER_HOME}:/bin/bash\n",
        "group": f"root:x:0:\n{USER}:x:{UID}:\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
    if spec.network == "open" and os.path.exists("/etc/resolv.conf"):
        files["resolv.conf"] = Path("/etc/resolv.conf").read_text()
    folders = ("etc", "tmp", "run", "var/tmp", USER_HOME.lstrip("/"))
    for name in folders:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / "etc" / name).write_text(text)
    if spec.limits.storage_mb is None:
        return ["--bind", str(root), "/"]
    made = ["--size", str(spec.limits.storage_mb << 20), "--tmpfs", "/"]
    for name in folders:
        made += ["--dir", f"/{name}"]
    for name in files:
        made += ["--ro-bind", str(root / "etc" / name), f"/etc/{name}"]
    return made


def _system(image: str, root: Path) -> list[str]:
    """The programs: this machine's, or those of a root file system in a folder."""
    if image:
        return _image(Path(image), root)
    argv = ["--ro-bind", "/usr", "/usr"]
    for name in PROGRAM_FOLDERS:
        if os.path.islink(f"/{name}"):
            argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            argv += ["--ro-bind", f"/{name}", f"/{name}"]
    for name in ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return argv


def _image(image: Path, root: Path) -> list[str]:
    """A root file system's programs read-only, and copies of its other folders."""
    if not (image / "usr").is_dir():
        raise SandboxError(
            f"the image of a bwrap sandbox is the folder of a root file system, {image} has no folder usr; "
            "unpack the container image there, or set agl.sandbox.backend to docker or podman"
        )
    argv = []
    for entry in sorted(image.iterdir()):
        if entry.name in (*PROGRAM_FOLDERS, "usr", "opt") and not entry.is_symlink():
            argv += ["--ro-bind", str(entry), f"/{entry.name}"]
        elif entry.is_symlink():
            argv += ["--symlink", os.readlink(entry), f"/{entry.name}"]
        elif entry.name not in ("dev", "proc", "sys", "run", "tmp", "boot"):
            (root / entry.name).mkdir(exist_ok=True)
            copied = ["cp", "-a", "--reflink=auto", "--no-clobber", f"{entry}/.", str(root / entry.name)]
            subprocess.run(copied, check=False, capture_output=True)
    return argv


def _kernel() -> list[str]:
    argv = ["--proc", "/proc"]
    for name in PROC:
        if os.path.exists(f"/proc/{name}"):
            argv += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    return [*argv, "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]


def _python(image: str) -> tuple[str, list[str]]:
    """The keeper's interpreter, and how it is brought in."""
    if not image:
        python, prefix = own_python(), os.path.realpath(sys.base_prefix)
        return python, [] if prefix == "/usr" or prefix.startswith("/usr/") else ["--ro-bind", prefix, prefix]
    for name in ("usr/local/bin/python3", "usr/bin/python3"):
        if os.path.lexists(os.path.join(image, name)):
            return f"/{name}", []
    raise SandboxError(f"the root file system {image} has no python3 in usr/bin or usr/local/bin; install it there")


@functools.cache
def _program() -> str:
    program = shutil.which("bwrap")
    if program is None or sys.platform != "linux":
        raise SandboxError(
            f"bwrap is not installed ({sys.platform}); install the package bubblewrap, or choose another "
            "agl.sandbox.backend: docker or podman isolate too, local does not"
        )
    return program


@functools.cache
def _newest_switches(program: str) -> tuple[str, ...]:
    """Switches that releases before 0.8 lack; the filter of system calls forbids the same."""
    said = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    return ("--disable-userns",) if "--disable-userns" in said.stdout + said.stderr else ()


def _advice() -> str:
    for switch, (bad, advice) in SWITCHES.items():
        path = Path("/proc/sys") / switch.replace(".", "/")
        if path.exists() and path.read_text().strip() == bad:
            return f"the kernel setting {switch} is {bad}: {advice} (sysctl -w)"
    return (
        "user namespaces seem to be forbidden; in a container, start it with --security-opt seccomp=unconfined "
        "--security-opt systempaths=unconfined, or choose another agl.sandbox.backend"
    )

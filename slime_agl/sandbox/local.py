"""The `local` backend: commands of this user, with a folder, a home and limits of their own.

It isolates nothing else: commands can read and write what this user can, see other processes and use the network; only
under `network: none` they can make no socket. Absolute paths of the protocol lie below a root folder, which commands
find in SANDBOX_ROOT. Mounts are links, which only this package's own calls treat as read-only. Everything that a
sandbox starts ends with it, daemons included.
"""

from __future__ import annotations

import os
from pathlib import Path

from slime_agl.sandbox import seccomp
from slime_agl.sandbox.home import ROOT, VARIABLE
from slime_agl.sandbox.kept import USER_HOME, KeptBackend, Launch, keeper_argv, own_python
from slime_agl.sandbox.protocol import Network, SandboxSpec, absolute

PACKAGES = str(Path(__file__).parents[2])
# What programs need to find themselves; nothing of it is secret.
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")


class LocalBackend(KeptBackend):
    name = "local"
    isolates = False

    def launch(self, spec: SandboxSpec, folder: Path, control: int) -> Launch:
        root = folder / ROOT
        for name in ("tmp", USER_HOME):
            (root / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
        links: dict[str, tuple[str, bool]] = {}
        for writable, folders in ((False, spec.mounts), (True, spec.shared)):
            for inside, outside in folders.items():
                link = root / inside.lstrip("/")
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(outside.resolve())
                links[absolute(inside)] = str(outside.resolve()), writable
        env = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        env |= {
            "HOME": str(root / USER_HOME.lstrip("/")),
            "TMPDIR": str(root / "tmp"),
            "SANDBOX_ROOT": str(root),
            VARIABLE: self.home.mark(folder),
        }
        return Launch(argv=keeper_argv(PACKAGES, control, own_python()), env=env, root=str(root), links=links)

    def path(self, root: Path, sandbox_path: str) -> str:
        return f"{root}{sandbox_path}".rstrip("/")

    def program(self, network: Network) -> bytes | None:
        return seccomp.no_sockets() if network == "none" else None

    def check_network(self, before: Network, after: Network) -> None:
        """Every change is possible: it holds for the commands that start afterwards."""

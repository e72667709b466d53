"""Make a socket that listens on the loopback of another process's network, and pass it out: `main PID PORT FD`."""

from __future__ import annotations

import ctypes
import os
import socket
import sys

from slime_agl.sandbox.inside.wire import rights

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def main() -> None:
    pid, port, fd = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        sys.exit("it shares this machine's network")
    try:
        _enter(f"/proc/{pid}/ns/net", CLONE_NEWNET)
    except PermissionError:
        # A rootless container: its user namespace, which is this user's, gives the right.
        _enter(f"/proc/{pid}/ns/user", CLONE_NEWUSER)
        _enter(f"/proc/{pid}/ns/net", CLONE_NEWNET)
    with socket.socket(fileno=fd) as out, socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(128)
        out.sendmsg([b"!"], rights(listening.fileno()))


def _enter(path: str, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(path, os.O_RDONLY)
    if libc.setns(namespace, kind):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    os.close(namespace)


if __name__ == "__main__":
    main()

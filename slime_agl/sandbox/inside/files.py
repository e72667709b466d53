"""Read and write the files of a sandbox, without a way out of it."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable

from slime_agl.sandbox.inside.kernel import LINUX, OPENAT2, RESOLVE_IN_ROOT, system_call
from slime_agl.sandbox.inside.wire import FOLDER, KEEP_MODE, LINK


class Tree:
    """The files of a sandbox below `root`, '/' in a namespace. Elsewhere links are resolved as if it were the root."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._fd = -1 if root == "/" else os.open(root, os.O_PATH if LINUX else os.O_RDONLY)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        flags |= os.O_CLOEXEC
        if self._fd < 0:
            return os.open(path, flags, mode)
        if not LINUX:
            return os.open(self._checked(path), flags, mode)
        how = struct.pack("QQQ", flags, mode if flags & os.O_CREAT else 0, RESOLVE_IN_ROOT)
        return system_call(OPENAT2, self._fd, path.encode(), how, len(how))

    def _checked(self, path: str) -> str:
        full = os.path.realpath(os.path.join(self._root, path.lstrip("/")))
        if os.path.commonpath((full, os.path.realpath(self._root))) != os.path.realpath(self._root):
            raise PermissionError(errno.EPERM, "leads out of the sandbox", path)
        return full

    def folder(self, path: str) -> int:
        """Open a folder, making it and its parents."""
        try:
            return self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            above, _, name = path.rstrip("/").rpartition("/")
            parent = self.folder(above or "/")
            try:
                os.mkdir(name, 0o755, dir_fd=parent)
            except FileExistsError:
                pass
            finally:
                os.close(parent)
        return self.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def entry(self, path: str, kind: bytes, mode: int, content: Callable[[int], None], target: bytes) -> None:
        """Make a folder, a file or a link; it replaces what is there, unless that is a folder."""
        if kind == FOLDER:
            fd = self.folder(path)
            os.fchmod(fd, mode)
            os.close(fd)
            return
        above, _, name = path.rstrip("/").rpartition("/")
        parent = self.folder(above or "/")
        try:
            if kind == LINK:
                _remove(name, parent)
                os.symlink(target, name, dir_fd=parent)
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            try:
                fd = os.open(name, flags, 0o644, dir_fd=parent)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ETXTBSY, errno.ENXIO, errno.EACCES):
                    raise
                _remove(name, parent)
                fd = os.open(name, flags | os.O_EXCL, 0o644, dir_fd=parent)
            try:
                content(fd)
                if mode != KEEP_MODE:
                    os.fchmod(fd, mode)
            finally:
                os.close(fd)
        finally:
            os.close(parent)


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass

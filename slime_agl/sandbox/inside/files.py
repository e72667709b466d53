"""Read and write the files of a sandbox, without a way out of it."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable

from slime_agl.sandbox.inside.kernel import LINUX, OPENAT2, RESOLVE_IN_ROOT, system_call
from slime_agl.sandbox.inside.wire import FOLDER, KEEP_MODE, LINK


class Place:
    """A folder at a path of the sandbox. fd: of it, -1 where paths are taken as they are."""

    def __init__(self, inside: str, outside: str, writable: bool = True) -> None:
        self.inside, self.outside, self.writable = inside, outside, writable
        self.fd = -1 if outside == "/" else os.open(outside, os.O_PATH if LINUX else os.O_RDONLY)

    def holds(self, path: str) -> bool:
        return path == self.inside or path.startswith(f"{self.inside}/")


class Tree:
    """The files of a sandbox below `root`, '/' in a namespace. Elsewhere links are resolved as if it were the root.

    links: other folders that stand at paths inside, and if they may be written.
    """

    def __init__(self, root: str, links: dict[str, tuple[str, bool]] | None = None) -> None:
        places = [Place("", root), *(Place(inside, *link) for inside, link in (links or {}).items())]
        self._places = sorted(places, key=lambda place: -len(place.inside))

    def _place(self, path: str) -> Place:
        return next(place for place in self._places if place.holds(path))

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        flags |= os.O_CLOEXEC
        place = self._place(path)
        if place.fd < 0:
            return os.open(path, flags, mode)
        below = path[len(place.inside) :] or "/"
        if not LINUX:
            return os.open(_checked(place.outside, below), flags, mode)
        how = struct.pack("QQQ", flags, mode if flags & os.O_CREAT else 0, RESOLVE_IN_ROOT)
        return system_call(OPENAT2, place.fd, os.fsencode(below), how, len(how))

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
        if not self._place(path).writable:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
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


def _checked(root: str, path: str) -> str:
    real = os.path.realpath(root)
    full = os.path.realpath(os.path.join(real, path.lstrip("/")))
    if os.path.commonpath((full, real)) != real:
        raise PermissionError(errno.EPERM, "leads out of the sandbox", path)
    return full


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass

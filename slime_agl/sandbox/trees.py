"""Files and folders of this machine as one stream, which a keeper unpacks."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from slime_agl.errors import SandboxError
from slime_agl.sandbox.inside.wire import ENTRY, FILE, FOLDER, KEEP_MODE, LINK
from slime_agl.sandbox.protocol import Content

USABLE = 0o700


def pack_content(out: BinaryIO, content: Content) -> None:
    """Write one file, whose mode stays as it is where it is replaced."""
    if isinstance(content, Path):
        try:
            with content.open("rb") as file:
                _put_file(out, "", KEEP_MODE, file)
        except OSError as error:
            raise SandboxError(f"cannot read {content} to put it into a sandbox: {error.strerror or error}") from error
        return
    data = content.encode() if isinstance(content, str) else content
    out.write(ENTRY.pack(FILE, KEEP_MODE, 0, len(data)) + data)


def pack_tree(out: BinaryIO, path: Path) -> None:
    """Write a file or a folder with all below it: modes kept, links as links, devices and sockets left out.

    Raises:
        SandboxError: something of it cannot be read.
    """
    try:
        _put(out, str(path), "")
    except OSError as error:
        raise SandboxError(f"cannot read {path} to put it into a sandbox: {error.strerror or error}") from error


def _put(out: BinaryIO, path: str, name: str) -> None:
    found = os.stat(path) if not name else os.lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        _head(out, LINK, 0, name, os.fsencode(os.readlink(path)))
    elif stat.S_ISREG(found.st_mode):
        with open(path, "rb") as file:
            _put_file(out, name, mode, file)
    elif stat.S_ISDIR(found.st_mode):
        _head(out, FOLDER, mode | USABLE, name)
        for entry in sorted(os.listdir(path)):
            _put(out, os.path.join(path, entry), f"{name}/{entry}" if name else entry)
        if mode | USABLE != mode:
            _head(out, FOLDER, mode, name)


def _head(out: BinaryIO, kind: bytes, mode: int, name: str, content: bytes = b"") -> None:
    encoded = os.fsencode(name)
    out.write(ENTRY.pack(kind, mode, len(encoded), len(content)) + encoded + content)


def _put_file(out: BinaryIO, name: str, mode: int, file: BinaryIO) -> None:
    size, encoded = os.fstat(file.fileno()).st_size, os.fsencode(name)
    out.write(ENTRY.pack(FILE, mode, len(encoded), size) + encoded)
    begun = out.tell()
    shutil.copyfileobj(file, out, 1 << 20)
    out.truncate(begun + size)  # the file may have grown or shrunk meanwhile
    out.seek(begun + size)

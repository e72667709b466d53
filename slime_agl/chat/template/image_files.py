"""Read images that agents name as `file://` URLs, below one folder and nowhere else."""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from slime_agl.errors import TemplateError

LARGEST_IMAGE = 32 * 1024 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK a pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def from_file(url: str, folder: Path | None) -> bytes:
    """Return the bytes of an image file. folder: absolute; None if no files may be read.

    Each step of the path is opened below the step before it, and no link is followed, so that nothing can move the
    file out of the folder between a check and its reading.

    Raises:
        TemplateError: the file lies outside the folder, is reached through a link, is not a regular file, or cannot be
            read; messages do not tell whether a file outside the folder exists.
    """
    if folder is None:
        raise TemplateError(
            f"an image is at {url[:200]!r}; give a data:, http:// or https:// URL, or name the folder of images with "
            "agl.image_dir"
        )
    steps = _below(url, folder)
    with ExitStack() as stack:
        try:
            at = _opened(stack, os.open(folder, _FOLDER))
            for name in steps[:-1]:
                at = _opened(stack, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at))
            file = _opened(stack, os.open(steps[-1], _FILE, dir_fd=at))
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise TemplateError(f"the image at {url[:200]!r} is not a regular file")
            with open(file, "rb", closefd=False) as image:
                return bounded(image.read(LARGEST_IMAGE + 1), url)
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) else str(error)
            raise TemplateError(
                f"the image at {url[:200]!r} cannot be read: {words}; no part of its path may be a link"
            ) from error


def bounded(raw: bytes, url: str) -> bytes:
    """Return the bytes of an image. Raises TemplateError if there are too many."""
    if len(raw) > LARGEST_IMAGE:
        raise TemplateError(
            f"the image at {url[:200]} is larger than the limit of {LARGEST_IMAGE} bytes; send a smaller one"
        )
    return raw


def _below(url: str, folder: Path) -> tuple[str, ...]:
    parts = urlsplit(url)
    path = PurePosixPath(unquote(parts.path))
    inside = parts.netloc in ("", "localhost") and path.is_relative_to(folder) and ".." not in path.parts
    steps = path.relative_to(folder).parts if inside else ()
    if not steps:
        raise TemplateError(
            f"the image at {url[:200]!r} does not lie below {folder} (agl.image_dir); name it as file:///absolute/path"
        )
    return steps


def _opened(stack: ExitStack, number: int) -> int:
    stack.callback(os.close, number)
    return number

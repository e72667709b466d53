"""Images in files: only regular files below the folder, never over a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slime_agl.chat.template.image_files import LARGEST_IMAGE, from_file
from slime_agl.errors import TemplateError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    (images / "deep").mkdir(parents=True)
    (images / "a b.png").write_bytes(b"one")
    (images / "deep" / "c.png").write_bytes(b"two")
    (tmp_path / "images-of-others").mkdir()
    (tmp_path / "images-of-others" / "d.png").write_bytes(b"other")
    (tmp_path / "secret").write_bytes(b"secret")
    (images / "link.png").symlink_to(tmp_path / "secret")
    (images / "inner.png").symlink_to(images / "deep" / "c.png")
    (images / "linked").symlink_to(tmp_path)
    os.mkfifo(images / "pipe.png")
    return images


@pytest.mark.parametrize(("name", "found"), [("a%20b.png", b"one"), ("deep/c.png", b"two"), ("./deep//c.png", b"two")])
def test_files_below_the_folder_are_read(folder: Path, name: str, found: bytes) -> None:
    assert from_file(f"file://{folder}/{name}", folder) == found
    assert from_file(f"file://localhost{folder}/{name}", folder) == found


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "%2e%2e/secret",
        "deep/../../secret",
        "deep/../a%20b.png",
        "../images-of-others/d.png",
        "link.png",
        "inner.png",
        "linked/secret",
        "linked/images/deep/c.png",
        "pipe.png",
        "deep",
        "",
        "none.png",
        "a%00b.png",
    ],
)
def test_nothing_else_is(folder: Path, name: str) -> None:
    with pytest.raises(TemplateError):
        from_file(f"file://{folder}/{name}", folder)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "file://images/a.png", "file://elsewhere/etc/passwd", "file:"])
def test_nothing_elsewhere_is(folder: Path, url: str) -> None:
    with pytest.raises(TemplateError, match=r"agl\.image_dir"):
        from_file(url, folder)
    with pytest.raises(TemplateError, match=r"agl\.image_dir"):
        from_file(url, None)


def test_a_file_may_be_as_large_as_a_fetched_image(folder: Path) -> None:
    with (folder / "large.png").open("wb") as large:
        large.truncate(LARGEST_IMAGE + 1)
    with pytest.raises(TemplateError, match="larger than the limit"):
        from_file(f"file://{folder}/large.png", folder)

"""The folders of sandboxes on this machine."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slime_agl.sandbox.home import Home


def test_the_first_sandboxes_of_a_driver_are_made_side_by_side(tmp_path: Path, monkeypatch):
    home = Home(str(tmp_path / "base"))
    both, inside, claim = threading.Barrier(2), threading.Barrier(2), home._claim
    calls = []

    def slow() -> None:
        calls.append(1)
        with contextlib.suppress(threading.BrokenBarrierError):
            inside.wait(timeout=0.5)  # for a second one, which must not come
        claim()

    monkeypatch.setattr(home, "_claim", slow)

    def make(number: int) -> Path:
        both.wait(timeout=10)
        return home.new({"number": str(number)})

    with ThreadPoolExecutor(2) as threads:
        folders = list(threads.map(make, range(2)))
    assert len(set(folders)) == 2 and all(folder.is_dir() for folder in folders)
    assert calls == [1]
    home.close()

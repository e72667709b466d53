"""The folders of sandboxes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slime_agl.sandbox.home import Home


def test_the_first_sandboxes_may_be_made_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, count = Home(str(tmp_path / "base")), 8
    together = threading.Barrier(count)
    claim = home._claim

    def late() -> None:
        """Give all that see no lock the time to come here."""
        try:
            together.wait(0.2)
        except threading.BrokenBarrierError:
            pass
        claim()

    monkeypatch.setattr(home, "_claim", late)
    with ThreadPoolExecutor(count) as threads:
        made = list(threads.map(lambda _: home.new({}), range(count)))
    assert len(set(made)) == count and all(folder.is_dir() for folder in made)
    home.close()

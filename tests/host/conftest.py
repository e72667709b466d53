"""Reads samples of either class alike, and writes prompt files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def _plain(value: Any) -> Any:
    return np.asarray(value).tolist() if hasattr(value, "tolist") else value


@pytest.fixture
def content() -> Callable[[Any], dict[str, Any]]:
    """A sample's fields with arrays and tensors as lists."""
    return lambda sample: {name: _plain(value) for name, value in sample.to_dict().items()}


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., str]:
    """Writes rows into a .jsonl file and returns its path."""

    def write(*rows: Any, name: str = "prompts.jsonl") -> str:
        path = tmp_path / name
        path.write_text(
            "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8"
        )
        return str(path)

    return write

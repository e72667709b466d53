"""slime's side of a rollout: its arguments and its data source, without slime.

>>> args = make_args(fake, checkpoint, n_samples_per_prompt=2, agl={"agent": "my_package:my_agent"})
>>> source = ListDataSource(["2 + 2?", {"prompt": "3 + 3?", "label": "6"}], n_samples_per_prompt=2)
>>> output = slime_agl.rollout.generate(args, 0, source)
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from slime_agl import host
from slime_agl.errors import ConfigError, HostError, closest

ROW_KEYS = ("prompt", "label", "metadata")
Row = str | list[dict] | Mapping[str, Any]
Group: TypeAlias = "list[host.Sample]"


class Served(Protocol):
    """An engine with an address, such as FakeSGLang."""

    @property
    def url(self) -> str: ...


def make_args(engine: str | Served, checkpoint: str | Path, **overrides: object) -> Namespace:
    """Return slime's arguments for rollouts on one engine.

    engine: a router's URL, or an object with `url`, such as FakeSGLang. checkpoint: `--hf-checkpoint`.
    overrides: any of slime's arguments, by its name in the namespace.

    Raises:
        ConfigError: the URL has no host or no port.
    """
    url = engine if isinstance(engine, str) else engine.url
    parts = urlsplit(url)
    if not parts.hostname or not parts.port:
        raise ConfigError(f"the engine's address is {url!r}, it must look like http://127.0.0.1:30000")
    given = {
        "hf_checkpoint": str(checkpoint),
        "sglang_router_ip": parts.hostname,
        "sglang_router_port": parts.port,
        "sglang_server_concurrency": 64,
        "rollout_max_response_len": 256,
    }
    return host.default_args(**{**given, **overrides})


class ListDataSource:
    """slime's data source over a list. It records the groups that are taken and put back.

    rows: prompts (text or messages), or mappings with `prompt` and optional `label` and `metadata`. The list repeats;
    groups that were put back are taken first, as in slime's buffer.

    taken, returned: all groups taken and put back, in order.
    """

    def __init__(self, rows: Sequence[Row], n_samples_per_prompt: int = 1) -> None:
        if not rows:
            raise ConfigError("a data source needs at least one row, got none")
        self.n_samples_per_prompt = n_samples_per_prompt
        self.taken: list[Group] = []
        self.returned: list[Group] = []
        self._rows = [_row(row, at) for at, row in enumerate(rows)]
        self._buffer: list[Group] = []
        self._groups = 0

    def get_samples(self, num_samples: int) -> list[Group]:
        """Return `num_samples` groups of fresh, pending Samples."""
        groups = [self._buffer.pop(0) if self._buffer else self._next_group() for _ in range(num_samples)]
        self.taken += groups
        return groups

    def add_samples(self, samples: list[Group]) -> None:
        """Put groups back.

        Raises:
            HostError: a group does not have n_samples_per_prompt entries.
        """
        for group in samples:
            if len(group) != self.n_samples_per_prompt:
                raise HostError(
                    f"a group of {len(group)} samples was put back into a data source whose groups have "
                    f"{self.n_samples_per_prompt}; groups go back whole"
                )
        self.returned += samples
        self._buffer += samples

    def save(self, rollout_id: int) -> None:
        """Nothing to save: the list is in memory."""

    def load(self, rollout_id: int | None = None) -> None:
        """Nothing to load."""

    def __len__(self) -> int:
        return len(self._rows)

    def _next_group(self) -> Group:
        row, number = self._rows[self._groups % len(self._rows)], self._groups
        self._groups += 1
        first = number * self.n_samples_per_prompt
        return [
            host.Sample(group_index=number, index=first + at, **copy.deepcopy(row))
            for at in range(self.n_samples_per_prompt)
        ]


def _row(row: Row, at: int) -> dict:
    if not isinstance(row, Mapping):
        return {"prompt": row}
    if unknown := [key for key in row if key not in ROW_KEYS]:
        raise ConfigError(
            f"row {at} has the key {unknown[0]!r}; a row has {', '.join(ROW_KEYS)}, everything else belongs "
            f"in metadata.{closest(unknown[0], ROW_KEYS)}"
        )
    if "prompt" not in row:
        raise ConfigError(f"row {at} has no prompt; it has {', '.join(row) or 'no keys'}")
    return dict(row)

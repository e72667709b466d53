"""Stored responses, which later requests of the same attempt can refer to."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

Item = dict[str, Any]


class StoredResponse(Struct, frozen=True):
    """previous: the response it continued. items: its input. body: as sent to the agent."""

    previous: StoredResponse | None
    items: tuple[Item, ...]
    body: dict[str, Any]


class StoredResponses:
    """The stored responses of one attempt, by id, and their items."""

    def __init__(self) -> None:
        self._by_id: dict[str, StoredResponse] = {}
        self._items: dict[str, Item] = {}

    def keep(self, stored: StoredResponse) -> None:
        self._by_id[stored.body["id"]] = stored
        self._items |= {item["id"]: item for item in stored.body["output"]}

    def find(self, response_id: str) -> StoredResponse | None:
        return self._by_id.get(response_id)

    def forget(self, response_id: str) -> None:
        """Delete a response. Responses that continue it keep their history."""
        self._by_id.pop(response_id, None)

    def item(self, item_id: str) -> Item | None:
        return self._items.get(item_id)


def history(stored: StoredResponse | None) -> list[Item]:
    """All items of a conversation, up to the output of `stored`."""
    chain: list[StoredResponse] = []
    while stored is not None:
        chain.append(stored)
        stored = stored.previous
    return [item for at in reversed(chain) for item in (*at.items, *at.body["output"])]

"""The messages of a recorded turn, as the agent sent them and as it was answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from slime_agl.record.blot import blot
from slime_agl.record.wire import INTEGER, INTEGER_OR_NONE, listed, mapping, one_of, shallow

PLACE = "messages"


class Said(Struct, frozen=True):
    """A turn in chat-completion messages.

    added: messages of its prompt after the reply of the turn it continues; all of them without such a turn.
    reply: the assistant message that was sent back. tools: those offered to the model, None without any.
    """

    added: Sequence[Mapping[str, Any]]
    reply: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]] | None = None


def encode_said(said: Mapping[int, Said]) -> dict[str, object]:
    """Plain data, in which equal tool lists stand once."""
    offered: list[Sequence[Mapping[str, Any]]] = []
    turns = []
    for index, one in said.items():
        number = None
        if one.tools is not None:
            number = next((at for at, tools in enumerate(offered) if tools is one.tools or tools == one.tools), None)
            if number is None:
                number = len(offered)
                offered.append(one.tools)
        turns.append([index, list(one.added), dict(one.reply), number])
    return {"turns": turns, "tools": [list(tools) for tools in offered]}


def decode_said(data: object, turns: int) -> dict[int, Said]:
    """turns: number of turns in the ledger. Raises ValueError if `encode_said` did not produce the data."""
    whole = mapping(shallow(data, "said"), "said")
    offered = [_messages(tools, "tools") for tools in listed(whole["tools"], "tools")]
    out = {}
    for one in listed(whole["turns"], "said"):
        index, added, reply, number = listed(one, "said")
        at, tool = one_of(index, "turn", INTEGER), one_of(number, "tools", INTEGER_OR_NONE)
        if not 0 <= at < turns or not (tool is None or 0 <= tool < len(offered)):
            raise ValueError(f"messages are of turn {at} of {turns}, with tools {tool} of {len(offered)}")
        out[at] = Said(_messages(added, "messages"), mapping(reply, "reply"), None if tool is None else offered[tool])
    return out


def blotted_said(said: Mapping[int, Said], account: Counter[str]) -> dict[int, Said]:
    """The messages as JSON-able data without credentials."""
    known: dict[int, Any] = {}  # tool lists are shared between turns

    def tools(given: Any) -> Any:
        if given is not None and id(given) not in known:
            known[id(given)] = blot(given, PLACE, account)
        return None if given is None else known[id(given)]

    return {
        index: Said(blot(list(one.added), PLACE, account), blot(one.reply, PLACE, account), tools(one.tools))
        for index, one in said.items()
    }


def _messages(data: object, name: str) -> list[Mapping[str, Any]]:
    return [mapping(one, name) for one in listed(data, name)]

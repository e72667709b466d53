"""Choose which of several turns with the same text a conversation continues; siblings of one request often agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slime_agl.chat.template.messages import END_THINK, split_think
from slime_agl.gateway.request import Message

if TYPE_CHECKING:
    from slime_agl.gateway.turn.conversation import Node

# Key of the turn id that an assistant message carries, set by the readers of protocols whose clients send ids back.
TURN = "turn_id"


def continued(nodes: Sequence[Node], messages: Sequence[Message]) -> Node:
    """Choose the turn that `messages` continue among `nodes`, all of which match their beginning.

    Ids decide first, then reasoning. Otherwise assume that agents continue equal answers in the order they received
    them: the first that has not been continued, else the first.
    """
    return max(nodes, key=lambda node: _signs(node, messages))


def _signs(node: Node, messages: Sequence[Message]) -> tuple[int, int, bool, int]:
    named = thought = at = 0
    for turn in node.path():
        at += len(turn.added) + 1
        reply = messages[at - 1]
        name, reasoning = reply.get(TURN), _reasoning(reply)
        if isinstance(name, str) and name:
            named += 1 if turn.turn_id.endswith(name) else -1
        if reasoning:
            thought += 1 if reasoning == turn.reply.reasoning.split() else -1
    return named, thought, not node.children, -node.index


def _reasoning(message: Message) -> list[str]:
    """Words of the reasoning that a message sends back, in its own field or inside the content."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str):
            return message[name].split()
    content = message.get("content")
    thought = split_think(content, opened=True) if isinstance(content, str) and END_THINK in content else None
    return thought[0].split() if thought else []

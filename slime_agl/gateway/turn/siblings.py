"""Which of several turns that say the same does a conversation continue? Answers of one request often agree in text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slime_agl.chat.template.messages import END_THINK, split_think

if TYPE_CHECKING:
    from slime_agl.gateway.turn.conversation import Node

# The turn that an assistant message names, where its protocol hands ids back; set by the readers of protocols.
TURN = "turn_id"


def continued(nodes: Sequence[Node], messages: Sequence[dict[str, Any]]) -> Node:
    """The turn among several `nodes` that `messages` go on from; every one of them reads as their beginning.

    Ids decide, then reasoning. Else agents are taken to go on with equal answers in the order in which they got
    them: the first one that nobody has continued, or the first of all.
    """
    return max(nodes, key=lambda node: _signs(node, messages))


def _signs(node: Node, messages: Sequence[dict[str, Any]]) -> tuple[int, int, bool, int]:
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


def _reasoning(message: dict[str, Any]) -> list[str]:
    """The words of the reasoning that a message hands back, apart from its content or within."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(message.get(name), str):
            return message[name].split()
    content = message.get("content")
    thought = split_think(content, opened=True) if isinstance(content, str) and END_THINK in content else None
    return thought[0].split() if thought else []

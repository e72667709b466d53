"""The turn that a request continues is the same, wherever the walk to it begins."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from slime_agl.chat.template.messages import Reply, ToolCall, wire_message
from slime_agl.gateway.turn.conversation import Conversation, Node

SYSTEM = {"role": "system", "content": "Be brief."}
USERS = [{"role": "user", "content": text} for text in ("one", "two", "three")]
TOOLS = (None, [{"type": "function", "function": {"name": "look"}}])


class FromRoot(Conversation):
    def _start(self, root: Node, messages: Any) -> tuple[Node, int]:
        return root, 0


class Walked:
    """A conversation and its turns."""

    def __init__(self, held: Conversation) -> None:
        self._held, self.nodes = held, []

    def ask(self, messages: list[Any], tools: Any, reply: Reply) -> Any:
        """Find the turn to continue, and add the turn that answers; return what was found."""
        match = self._held.match(messages, tools, {})
        node = Node(
            index=len(self.nodes),
            parent=match.node,
            added=match.new,
            reply=reply,
            tools=tools if match.node is None else match.node.tools,
            kwargs={},
            last_id=7,
        )
        self.nodes.append(node)
        self._held.add(node, messages)
        assert node.end == len(messages)
        return match.node and match.node.index, match.new, match.fork


def echo(reply: Reply, rng: random.Random) -> dict[str, Any]:
    message = wire_message(reply)
    if rng.random() < 0.2:
        message["content"] = f" {message['content'] or ''} "
    return message


@pytest.mark.parametrize("seed", range(60))
def test_the_walk_finds_the_same_turn_from_the_root_and_from_where_the_last_request_ended(
    seed: int,
) -> None:
    rng = random.Random(seed)
    slow, quick = Walked(FromRoot()), Walked(Conversation())
    # Most conversations go on for long, since only those without branches are walked differently.
    odd = rng.choice((0.0, 0.05, 0.3))
    talks: list[tuple[list[Any], Any]] = [([SYSTEM, USERS[0]], TOOLS[0])]
    for number in range(60):
        at = rng.randrange(len(talks))
        messages, tools = talks[at]
        messages = list(messages)
        if rng.random() < odd:
            kind = rng.randrange(5)
            if kind == 0:
                messages = messages[: rng.randrange(1, len(messages) + 1)]
            elif kind == 1:
                messages[rng.randrange(len(messages))] = rng.choice(USERS)
            elif kind == 2:
                tools = rng.choice(TOOLS)
            elif kind == 3:
                messages = copy.deepcopy(messages)
            else:
                talks.append(([SYSTEM, rng.choice(USERS)], rng.choice(TOOLS)))
        calls = (ToolCall(f"c{number:06d}00", "look", '{"at": 1}'),) if rng.random() < 0.4 else ()
        reply = Reply(rng.choice(("yes", "no")), "", calls)
        found = [one.ask(messages, tools, reply) for one in (slow, quick)]
        assert found[0] == found[1], number
        if rng.random() < odd:
            talks.append(talks[at])
        talks[at] = ([*messages, echo(reply, rng), rng.choice(USERS)], tools)


def test_a_straight_conversation_is_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[int] = []
    plain = Conversation._end_of

    def noted(self: Conversation, node: Node, *rest: Any) -> int | None:
        visited.append(node.index)
        return plain(self, node, *rest)

    monkeypatch.setattr(Conversation, "_end_of", noted)
    talk, walked, messages = random.Random(1), Walked(Conversation()), [SYSTEM, USERS[0]]
    for _ in range(50):
        reply = Reply("yes", "", ())
        visited.clear()
        walked.ask(messages, None, reply)
        assert len(visited) <= 1
        messages = [*messages, echo(reply, talk), USERS[1]]

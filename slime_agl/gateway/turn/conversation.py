"""The turn tree as messages, to find the turn that a request continues.

Clients do not echo replies byte for byte: SDKs reorder JSON, drop reasoning and normalise whitespace. Matching is
therefore by meaning. A false match would train on a history the agent never sent; a miss only costs a new segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from msgspec import Struct

from slime_agl.chat.template.messages import Reply, normalise, reply_message, same_message, same_reply, wire_message
from slime_agl.chat.template.tools import Tools
from slime_agl.gateway.request import Message
from slime_agl.gateway.turn.siblings import continued
from slime_agl.record.said import Said


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """A committed turn: the messages added since its parent, as the agent sent them, and its reply.

    unfinished: the length limit cut the turn within its text, so that it can be resumed.
    echo: the reply as the agent last sent it back, if it differs from ours. turn_id: the answer's id.
    shown: `added`, normalised, as the template was given it; None if that is as sent. trains: see `Selection`.
    end, shown_end: number of messages in the turn's prompt, as sent and as shown. root: the first turn of its tree.
    """

    index: int
    parent: Node | None
    added: tuple[Message, ...]
    reply: Reply
    tools: Tools | None
    kwargs: Mapping[str, object]
    last_id: int | None
    unfinished: bool = False
    turn_id: str = ""
    shown: tuple[Message, ...] | None = None
    trains: bool = True
    children: list[Node] = field(default_factory=list)
    echo: Message | None = None
    end: int = field(init=False)
    shown_end: int = field(init=False)
    root: Node = field(init=False)

    def __post_init__(self) -> None:
        # Replies stand between the turns.
        self.end, self.shown_end, self.root = (
            (0, 0, self) if self.parent is None else (self.parent.end + 1, self.parent.shown_end + 1, self.parent.root)
        )
        self.end += len(self.added)
        self.shown_end += len(self.added if self.shown is None else self.shown)

    def path(self) -> list[Node]:
        """The turns from the root to this one."""
        chain: list[Node] = []
        at: Node | None = self
        while at is not None:
            chain.append(at)
            at = at.parent
        chain.reverse()
        return chain

    def prompt_messages(self) -> list[Message]:
        """The messages of the turn's prompt, as the agent sent them."""
        messages: list[Message] = []
        for node in self.path():
            messages.extend(node.added)
            if node is not self:
                messages.append(node.echo or wire_message(node.reply))
        return messages


class _Straight(Struct, frozen=True):
    """A tree without branches. last: its last turn. prompt: messages of that turn's prompt, as sent; () if unknown."""

    last: Node
    prompt: Sequence[Message]


class Context(Sequence[Message]):
    """Normalised messages of a turn's prompt, with earlier reasoning. Lazy: most templates need the first one only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._all: list[Message] | None = None

    def __len__(self) -> int:
        return self._node.shown_end

    @overload
    def __getitem__(self, at: int) -> Message: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Message]: ...

    def __getitem__(self, at: int | slice) -> Message | Sequence[Message]:
        if at != 0:
            return self._made()[at]
        root = self._node.root
        return normalise([root.added[0]])[0] if root.shown is None else root.shown[0]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._made())

    def _made(self) -> list[Message]:
        if self._all is None:
            self._all = []
            for node in self._node.path():
                self._all.extend(normalise(list(node.added)) if node.shown is None else node.shown)
                if node is not self._node:
                    self._all.append(reply_message(node.reply))
        return self._all


class Match(Struct, frozen=True):
    """node: the turn to continue, None for a new root. new: the messages after it.

    fork: why the request does not simply continue a turn; '' if it does, or is the first.
    """

    node: Node | None
    new: tuple[Message, ...]
    fork: str


class Conversation:
    """All turns of an attempt, looked up by the replies that the agent echoes."""

    def __init__(self) -> None:
        self.roots: list[Node] = []
        # Roots of conversations that train: only these can be forked.
        self._trained: list[Node] = []
        self._by_call: dict[str, Node] = {}
        # By the index of the root.
        self._straight: dict[int, _Straight] = {}

    def add(self, node: Node, messages: Sequence[Message]) -> None:
        """Add a turn. messages: of its prompt."""
        (node.parent.children if node.parent else self.roots).append(node)
        if node.trains and (node.parent is None or not node.parent.trains):
            if node.root is node or node.root not in self._trained:
                self._trained.append(node.root)
        for call in node.reply.tool_calls:
            self._by_call[call.id] = node
        self._extend(node, messages)

    def said(self) -> dict[int, Said]:
        """The messages of every turn, by its index."""
        found, stack = {}, list(self.roots)
        while stack:
            node = stack.pop()
            found[node.index] = Said(node.added, wire_message(node.reply), node.tools or None)
            stack += node.children
        return dict(sorted(found.items()))

    def match(self, messages: Sequence[Message], tools: Tools | None, kwargs: Mapping[str, object]) -> Match:
        """Find the deepest turn that `messages` continue with the same tools and template variables."""
        stack = [self._start(root, messages) for root in self.roots if root.tools == tools and root.kwargs == kwargs]
        # A walk that begins further down has come through the turn before.
        consumed = max([at for _, at in stack], default=0)
        found = [node.parent for node, at in stack if at == consumed and node.parent is not None]
        while stack:
            node, at = stack.pop()
            end = self._end_of(node, messages, at)
            if end is None:
                continue
            if end > consumed:
                found, consumed = [node], end
            elif end == consumed:
                found.append(node)
            stack.extend((child, end) for child in node.children)
        best = continued(found, messages) if len(found) > 1 else next(iter(found), None)
        new = tuple(messages[consumed:])
        return Match(best, new, self._fork(best, messages, new, tools, kwargs))

    def unfinished(
        self, messages: Sequence[Message], tools: Tools | None, kwargs: Mapping[str, object], text: str
    ) -> Node | None:
        """Find the latest unfinished turn that answered `messages` with the longest prefix of `text`."""
        found: list[Node] = []
        stack = [(root, 0) for root in self.roots if root.tools == tools and root.kwargs == kwargs]
        while stack:
            node, at = stack.pop()
            answered = at + len(node.added) == len(messages)
            if answered and node.unfinished and text.startswith(node.reply.text) and _begins(node, messages, at):
                found.append(node)
            end = self._end_of(node, messages, at)
            stack.extend((child, end) for child in node.children if end is not None)
        return max(found, key=lambda node: (len(node.reply.text), node.index), default=None)

    def _extend(self, node: Node, messages: Sequence[Message]) -> None:
        """Note where the next request may begin its walk (see `_start`)."""
        root = node.root
        straight = self._straight.get(root.index)
        if node is root or (straight is not None and straight.last is node.parent):
            # Not of a root: most are never continued, and share their messages with other attempts.
            known = node is not root and node.end == len(messages)
            self._straight[root.index] = _Straight(node, messages if known else ())
        else:
            self._straight.pop(root.index, None)

    def _start(self, root: Node, messages: Sequence[Message]) -> tuple[Node, int]:
        """Choose the turn of a tree from which to walk, and its first message.

        In a tree without branches that is the last, if the request repeats its whole prompt: comparing lists whose
        messages are the same objects (see `Repeats`) takes 10 us for 400 turns, walking 1.2 ms.
        """
        straight = self._straight.get(root.index)
        if straight is not None and (prompt := straight.prompt):
            if len(messages) > len(prompt) and messages[: len(prompt)] == prompt:
                return straight.last, straight.last.end - len(straight.last.added)
        return root, 0

    def _end_of(self, node: Node, messages: Sequence[Message], at: int) -> int | None:
        """Position after the node's reply in `messages`, None if they differ from the node."""
        reply_at = at + len(node.added)
        if reply_at >= len(messages):
            return None
        reply = messages[reply_at]
        if reply.get("role") != "assistant" or not self._is_reply(node, reply):
            return None
        return reply_at + 1 if _begins(node, messages, at) else None

    def _is_reply(self, node: Node, message: Message) -> bool:
        if _echoes(node.reply, message) or message == node.echo:
            return True
        if not self._reads_as(node, message):
            return False
        node.echo = message
        return True

    def _reads_as(self, node: Node, message: Message) -> bool:
        for call in message.get("tool_calls") or ():
            named = self._by_call.get(call.get("id", "")) if isinstance(call, dict) else None
            if named is not None and named is not node:
                return False
        return same_reply(node.reply, message)

    def _fork(
        self,
        best: Node | None,
        messages: Sequence[Message],
        new: Sequence[Message],
        tools: Tools | None,
        kwargs: Mapping[str, object],
    ) -> str:
        if best is not None:
            if any(message.get("role") == "assistant" for message in new):
                return "edited_reply"
            return "branch" if any(child.trains for child in best.children) else ""
        roots = self._trained
        if not roots:
            return ""
        if not any(message.get("role") == "assistant" for message in messages):
            return "new_conversation"
        if not any(root.tools == tools for root in roots):
            return "tools_changed"
        if not any(root.kwargs == kwargs for root in roots):
            return "template_kwargs_changed"
        if not any(_same_system(root.added, messages) for root in roots):
            return "system_changed"
        return "history_edited"


def _begins(node: Node, messages: Sequence[Message], at: int) -> bool:
    """Check that the messages from `at` on start with those that the turn answered."""
    told = tuple(messages[at : at + len(node.added)])
    return told == node.added or all(same_message(*pair) for pair in zip(node.added, told, strict=True))


def _echoes(reply: Reply, message: Message) -> bool:
    """Check that an assistant message equals the reply as sent, including our call ids. The fast path of matching."""
    calls = message.get("tool_calls") or ()
    if (message.get("content") or "") != reply.text or len(calls) != len(reply.tool_calls):
        return False
    for ours, theirs in zip(reply.tool_calls, calls, strict=True):
        function = theirs.get("function") if type(theirs) is dict else None
        if type(function) is not dict or theirs.get("id") != ours.id:
            return False
        if function.get("name") != ours.name or function.get("arguments") != ours.arguments:
            return False
    return True


def _same_system(added: Sequence[Message], messages: Sequence[Message]) -> bool:
    mine = [m for m in added if m.get("role") in ("system", "developer")]
    theirs = [m for m in messages if m.get("role") in ("system", "developer")]
    return len(mine) <= len(theirs) and all(same_message(a, b) for a, b in zip(mine, theirs, strict=False))

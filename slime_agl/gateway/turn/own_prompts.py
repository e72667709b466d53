"""Prompts that an agent renders itself: which turn they continue, and which ids are new.

A text that begins with an earlier prompt and its answer continues that turn's ids; only the rest is encoded. Ids that
begin with a turn's ids continue it, whatever protocol that turn used.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from slime_agl.gateway.turn.long_texts import LongTexts
from slime_agl.gateway.turn.prompt import Prompt
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import token_array

if TYPE_CHECKING:
    from slime_agl.gateway.sessions.session import Session


class TextNode(Struct, kw_only=True):
    """A turn that answered a text.

    added: the text after its parent's. answered: the text sent to the agent.
    whole: all sampled text, including the stop string or stop token that `answered` omits.
    """

    index: int
    added: str
    answered: str
    whole: str
    children: list[TextNode] = field(default_factory=list)


class Start(Struct, frozen=True, kw_only=True):
    """How a prompt begins.

    parent: the turn it continues, or None. node: the same turn as text. head: ids reused for the start of a new root.
    rest: number of leading characters that ids already cover. fork: why it does not continue a turn, '' if it does.
    """

    parent: int | None = None
    node: TextNode | None = None
    head: array = field(default_factory=lambda: array("i"))
    rest: int = 0
    fork: str = ""


class OwnPrompts:
    """The turns of an attempt that answered texts, looked up by the start of the next text."""

    def __init__(self) -> None:
        self.roots: list[TextNode] = []

    def add(self, node: TextNode, parent: TextNode | None) -> None:
        (parent.children if parent else self.roots).append(node)

    def start(self, prompt: str, ledger: Ledger, decode: Callable[[list[int]], str]) -> Start:
        """Find the turn with the longest text that `prompt` begins with.

        An agent that drops a turn's ending (stop token or stop string) asks for another sequence than the sampled one:
        that makes a new root, which reuses the exact ids up to there.
        """
        best = Start(fork="new_conversation") if self.roots else Start()
        # Among equal answers the first visited wins, unless it has been continued and another has not.
        stack = [(root, 0) for root in reversed(self.roots)]
        while stack:
            node, at = stack.pop()
            said_at = at + len(node.added)
            if not prompt.startswith(node.added, at) or not prompt.startswith(node.answered, said_at):
                continue
            if prompt.startswith(node.whole, said_at):
                end = said_at + len(node.whole)
                taken = best.node is not None and best.node.children and not node.children
                if end > best.rest or (end == best.rest and taken):
                    best = Start(parent=node.index, node=node, rest=end)
                stack.extend((child, end) for child in reversed(node.children))
            elif said_at + len(node.answered) > best.rest:
                best = _cut(node, said_at, ledger, decode)
        return best


def _cut(node: TextNode, said_at: int, ledger: Ledger, decode: Callable[[list[int]], str]) -> Start:
    """Keep the ids whose text lies within the text sent to the agent."""
    said = list(ledger.turns[node.index].output_ids())
    kept = len(said)
    while not node.answered.startswith(text := decode(said[:kept])):
        kept -= 1
    whole = ledger.ids(node.index)
    return Start(head=whole[: len(whole) - len(said) + kept], rest=said_at + len(text), fork="ending_left_out")


async def text_prompt(session: Session, text: str, long: LongTexts, *, special: bool) -> Prompt:
    """Make the prompt of a text. special: a first text gets the tokenizer's BOS token. Raises Refusal."""
    start = session.own_prompts.start(text, session.ledger, long.renderer.decode)
    fresh = start.parent is None and not start.head
    rest = await long.encoded(session, text[start.rest :], special=fresh and special)
    return Prompt(parent=start.parent, new_ids=start.head + token_array(rest), fork=start.fork, start=start)


def ids_prompt(session: Session, ids: tuple[int, ...]) -> Prompt:
    """Make the prompt of ids, without those that a turn of the session already covers."""
    parent = longest_known(session.ledger, ids)
    known = 0 if parent is None else session.ledger.length(parent)
    return Prompt(parent=parent, new_ids=token_array(ids[known:]))


def longest_known(ledger: Ledger, prompt: tuple[int, ...]) -> int | None:
    """Find the deepest turn that the agent received whose prompt and output `prompt` begins with.

    Among equal ones, the first that has not been continued, else the first.
    """
    ids = token_array(prompt)
    best, longest = None, 0
    stack: list[tuple[int, int]] = [(root, 0) for root in reversed(ledger.children(None))]
    while stack:
        index, at = stack.pop()
        turn = ledger.turns[index]
        own = turn.new_ids + turn.output_ids()
        if not turn.received or ids[at : at + len(own)] != own:
            continue
        length, children = ledger.length(index), ledger.children(index)
        if length > longest or (length == longest and ledger.children(best) and not children):
            best, longest = index, length
        stack.extend((child, length) for child in reversed(children))
    return best

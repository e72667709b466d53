"""The value that the first stage of a turn passes to the next."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from msgspec import Struct

from slime_agl.chat.template.tools import Tools
from slime_agl.gateway.request import Message
from slime_agl.trace.turn import Media

if TYPE_CHECKING:
    from slime_agl.gateway.turn.conversation import Node
    from slime_agl.gateway.turn.own_prompts import Start


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt for the engine.

    parent: the turn it continues, or None. new_ids: ids after that turn's. media: images among `new_ids`.
    fork: why the prompt does not simply continue a turn, '' if it does.
    node: the parent in the conversation. added: messages since then, as sent. tools: the tools sent with them.
    shown: the normalised form of `added` as the template was given it, None if that is as sent.
    start: for a text prompt, how it begins. begun: the start of the reply that the prompt ends with.
    """

    parent: int | None
    new_ids: array
    fork: str = ""
    media: Media | None = None
    node: Node | None = None
    added: tuple[Message, ...] = ()
    shown: tuple[Message, ...] | None = None
    tools: Tools | None = None
    start: Start | None = None
    begun: str = ""

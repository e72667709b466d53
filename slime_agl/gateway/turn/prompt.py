"""What the first station of a turn hands to the next."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slime_agl.chat.template.tools import Tools
from slime_agl.trace.turn import Media

if TYPE_CHECKING:
    from slime_agl.gateway.turn.conversation import Node
    from slime_agl.gateway.turn.own_prompts import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the engine is to be shown.

    parent: the turn continued, or None. new_ids: what comes after it.
    fork: why the prompt is not a plain continuation, '' when it is. media: the images that `new_ids` show.
    node: the parent in the conversation. added: the messages since then, as sent. tools: the tools that they came with.
    start: how a text that the agent made itself begins. begun: the part of the answer that the prompt ends with.
    """

    parent: int | None
    new_ids: array
    fork: str = ""
    media: Media | None = None
    node: Node | None = None
    added: tuple[dict[str, Any], ...] = ()
    tools: Tools | None = None
    start: Start | None = None
    begun: str = ""

"""Answers whose beginning is written for the model: by the agent in its last message, or by us for a forced call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slime_agl.chat.template.opening import call_opening
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import TemplateError
from slime_agl.gateway.refusal import bad_field
from slime_agl.gateway.request import ANY_TOOL, TurnRequest
from slime_agl.gateway.turn.long_texts import LongTexts
from slime_agl.gateway.turn.prompt import Prompt
from slime_agl.trace.turn import token_array

if TYPE_CHECKING:
    from slime_agl.gateway.sessions.session import Session

Message = dict[str, Any]
BEGUN_FIELDS = frozenset({"continue_final_message", "add_generation_prompt"})


def split_begun(body: Mapping[str, Any], messages: list[Message]) -> tuple[list[Message], str | None]:
    """The messages before the one that `continue_final_message` asks to go on with, and its text; None without the flag.

    A last assistant message is finished unless the flag is set, as in vLLM and SGLang.

    Raises:
        Refusal: the flags contradict each other, or the last message cannot be gone on with.
    """
    wanted, opens = body.get("continue_final_message"), body.get("add_generation_prompt")
    for name, value in (("continue_final_message", wanted), ("add_generation_prompt", opens)):
        if value not in (None, True, False):
            raise bad_field(name, f"{name} is {value!r}, it must be true or false")
    if not wanted:
        if opens is False:
            raise bad_field(
                "add_generation_prompt",
                "without a generation prompt the model only goes on with a message; set continue_final_message as well",
            )
        return messages, None
    if opens:
        raise bad_field("add_generation_prompt", "a final message cannot be gone on with after a generation prompt")
    text = begun_text(messages)
    if text is None:
        raise bad_field(
            "messages", "continue_final_message needs a last message of the assistant with text and no calls"
        )
    return messages[:-1], text


def begun_text(messages: list[Message]) -> str | None:
    """The text of a last assistant message that only says something; None when there is none."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        return " ".join(part["text"] for part in content)
    return content if isinstance(content, str) else None


async def resumed(session: Session, request: TurnRequest, long: LongTexts) -> Prompt | None:
    """The prompt that goes on with a turn of ours: its ids as sampled, and the ids of what the agent wrote after.

    None when no turn of the session begins the answer. Raises Refusal, see `LongTexts.run`.
    """
    begun = request.begun or ""
    node = session.conversation.unfinished(request.messages, request.tools, request.template_kwargs, begun)
    if node is None:
        return None
    written = token_array(await long.encoded(session, begun[len(node.reply.text) :]))
    return Prompt(
        parent=node.index,
        new_ids=written,
        node=node.parent,
        added=node.added,
        tools=node.tools,
        begun=begun,
    )


def forced(prompt: Prompt, request: TurnRequest, renderer: Renderer) -> Prompt:
    """The prompt with the beginning of a call that must be made.

    Raises:
        Refusal: 400, the template does not show how a call begins.
    """
    name = None if request.forced == ANY_TOOL else request.forced
    try:
        opening = call_opening(renderer, request.tools or [], name, request.template_kwargs)
    except TemplateError as error:
        raise bad_field("tool_choice", str(error)) from error
    ids = token_array(renderer.encode(opening.text))
    return replace(prompt, new_ids=prompt.new_ids + ids, begun=opening.call)

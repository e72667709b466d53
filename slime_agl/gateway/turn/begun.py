"""Replies whose start is given: by the agent's last message (assistant prefill), or by us for a forced tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from slime_agl.chat.template.opening import call_opening
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import TemplateError
from slime_agl.gateway.refusal import bad_field
from slime_agl.gateway.request import ANY_TOOL, Message, TurnRequest
from slime_agl.gateway.turn.long_texts import LongTexts
from slime_agl.gateway.turn.prompt import Prompt
from slime_agl.trace.turn import token_array

if TYPE_CHECKING:
    from slime_agl.gateway.sessions.session import Session

BEGUN_FIELDS = frozenset({"continue_final_message", "add_generation_prompt"})


def split_begun(body: Mapping[str, object], messages: list[Message]) -> tuple[list[Message], str | None]:
    """Split off the final message if `continue_final_message` is set: return the others and its text, else None.

    Without the flag a final assistant message is complete, as in vLLM and SGLang.

    Raises:
        Refusal: the flags contradict each other, or the final message cannot be continued.
    """
    wanted, opens = body.get("continue_final_message"), body.get("add_generation_prompt")
    for name, value in (("continue_final_message", wanted), ("add_generation_prompt", opens)):
        if value not in (None, True, False):
            raise bad_field(name, f"{name} is {value!r}, it must be true or false")
    if not wanted:
        if opens is False:
            raise bad_field(
                "add_generation_prompt",
                "without a generation prompt the model can only continue a message; set continue_final_message as well",
            )
        return messages, None
    if opens:
        raise bad_field("add_generation_prompt", "a final message cannot be continued after a generation prompt")
    text = begun_text(messages)
    if text is None:
        raise bad_field(
            "messages", "continue_final_message needs a last message of the assistant with text and no calls"
        )
    return messages[:-1], text


def begun_text(messages: list[Message]) -> str | None:
    """Return the text of a final assistant message without tool calls; None if there is none."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        return " ".join(part["text"] for part in content)
    return content if isinstance(content, str) else None


async def resumed(session: Session, request: TurnRequest, long: LongTexts) -> Prompt | None:
    """Make the prompt that continues an unfinished turn: its ids as sampled, plus the ids of text the agent appended.

    None if no turn of the session starts the reply. Raises Refusal, see `LongTexts.run`.
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
    """Append the opening of a forced tool call to a prompt.

    Raises:
        Refusal: 400, the template does not reveal how a call begins.
    """
    name = None if request.forced == ANY_TOOL else request.forced
    try:
        opening = call_opening(renderer, request.tools or [], name, request.template_kwargs)
    except TemplateError as error:
        raise bad_field("tool_choice", str(error)) from error
    ids = token_array(renderer.encode(opening.text))
    return replace(prompt, new_ids=prompt.new_ids + ids, begun=opening.call)

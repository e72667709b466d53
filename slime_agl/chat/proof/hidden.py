"""Find what a chat template omits, so that the model never sees it."""

from __future__ import annotations

from collections.abc import Mapping

from slime_agl.chat.proof.probes import KEPT, RESULTS, SYSTEM, USER, VALUE, calls_of, result_of
from slime_agl.chat.proof.proofs import try_render
from slime_agl.chat.proof.report import KindReport
from slime_agl.chat.template.messages import Reply, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.shape import PROBE_TOOLS, WORD

_PIXEL = "data:image/png;base64,iVBORw0KGgo="


def hidden_from_model(renderer: Renderer, kinds: Mapping[str, KindReport]) -> tuple[str, ...]:
    """Name the inputs that the template accepts but does not write, as keys of `report.HIDDEN`."""
    calling = [USER, reply_message(Reply("", "", calls_of("tool")))]
    told = [*calling, result_of(calls_of("tool")[0], RESULTS[0])]
    lone = {
        "tools": ("probe_tool", [([USER], True), ([SYSTEM, USER], True)]),
        "tool_calls": (VALUE, [(calling, False), (told, True)]),
        "tool_results": (RESULTS[0], [(told, True), ([SYSTEM, *told], True)]),
        "system": (KEPT, [([SYSTEM, USER], True)]),
    }
    found = []
    for name, (word, talks) in lone.items():
        tools = None if name == "system" else PROBE_TOOLS
        written = [text for talk, prompt in talks if (text := try_render(renderer, talk, tools, {}, prompt))]
        if written and not any(word in text for text in written):
            found.append(name)
    roles = {role for one in kinds.values() for role in one.hides}
    if "tool" in roles and "tool_results" not in found:
        found.append("some_tool_results")
    if "system" in roles and "system" not in found:
        found.append("later_system")
    return (*found, *(["user"] if "user" in roles else []))


def shows_images(renderer: Renderer) -> bool:
    """Check that the template writes a placeholder for an image."""
    part = {"type": "text", "text": WORD}
    image = {"type": "image", "image": _PIXEL}
    with_image = try_render(renderer, [{"role": "user", "content": [part, image]}], None, {}, True)
    without = try_render(renderer, [{"role": "user", "content": [part]}], None, {}, True)
    return bool(with_image) and with_image != without and _PIXEL not in with_image

"""Check that a parser reads what the template writes, as a model trained on the template writes the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os.path import commonprefix

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.probes import ANSWER, THOUGHT, USER, calls_of
from slime_agl.chat.proof.proofs import try_render
from slime_agl.chat.template.messages import END_THINK, THINK, Reply, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.shape import PROBE_TOOLS
from slime_agl.trace.turn import STOP

NOT_SHOWN = "not shown by the template"


def round_trips(renderer: Renderer, parser: ReplyParser) -> dict[str, str]:
    """Parse turns in the template's own syntax: `call`, `parallel_calls`, `reasoning`, `reasoning_and_call`.

    Each is '' if the turn comes back unchanged, else a description of the difference.
    """
    call, calls = calls_of("tool"), calls_of("parallel_tools")
    return {
        "call": _trip(renderer, parser, Reply("", "", call)),
        "parallel_calls": _trip(renderer, parser, Reply("", "", calls)),
        "reasoning": _trip(renderer, parser, Reply(ANSWER, THOUGHT, ())),
        "reasoning_and_call": _trip(renderer, parser, Reply("", THOUGHT, call)),
    }


def _trip(renderer: Renderer, parser: ReplyParser, said: Reply) -> str:
    opened = renderer.encode(try_render(renderer, [USER], PROBE_TOOLS, {}, True))
    written = renderer.encode(try_render(renderer, [USER, reply_message(said)], PROBE_TOOLS, {}))
    prompt = commonprefix([opened, written])
    ids = _turn(renderer, written[len(prompt) :])
    text = renderer.decode(ids)
    if not all(_word(one) in text for one in [*(call.arguments for call in said.tool_calls), said.reasoning]):
        return NOT_SHOWN
    reply = parser.parse(
        ids,
        finish=STOP,
        tools=PROBE_TOOLS,
        # In a history, `</think>` stands alone if the generation prompt would have opened the reasoning.
        prompt_opens_think=renderer.decode(prompt[-8:]).rstrip().endswith(THINK) or text.lstrip().startswith(END_THINK),
        mint=lambda number: said.tool_calls[number].id if number < len(said.tool_calls) else "more",
    )
    return _difference(said, reply)


def _turn(renderer: Renderer, written: list[int]) -> list[int]:
    """Return the part of `written` that a model samples: everything through the first stop id."""
    end = next((at for at, token in enumerate(written, 1) if token in renderer.stop_ids), len(written))
    return written[:end]


def _difference(said: Reply, read: Reply) -> str:
    if read.ill_formed:
        return f"ill-formed: {_brief(read.text)}"
    if _calls(said) != _calls(read):
        return f"{len(read.tool_calls)} of {len(said.tool_calls)} calls, and the text {_brief(read.text)}"
    if said.reasoning.strip() != read.reasoning.strip():
        return f"the reasoning {_brief(read.reasoning)}, and the text {_brief(read.text)}"
    return "" if said.text.strip() == read.text.strip() else f"the text {_brief(read.text)}"


def _calls(reply: Reply) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


def _word(text: str) -> str:
    """Return the word of an argument or a thought that a template writes in any syntax."""
    if not text.startswith("{"):
        return text
    arguments: Mapping[str, str] = json.loads(text)
    return next(iter(arguments.values()))


def _brief(text: str) -> str:
    return repr(text if len(text) < 60 else text[:57] + "...")

"""Does a parser read what the template writes? A model trained on the template writes the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os.path import commonprefix
from typing import Any

from slime_agl.chat.messages import THINK, Reply, reply_message
from slime_agl.chat.parse import ReplyParser
from slime_agl.chat.probes import ANSWER, THOUGHT, USER, calls_of
from slime_agl.chat.proofs import shown
from slime_agl.chat.renderer import Renderer
from slime_agl.chat.shape import PROBE_TOOLS
from slime_agl.trace.turn import STOP

NOT_SHOWN = "not shown by the template"


def round_trips(renderer: Renderer, parser: ReplyParser) -> dict[str, str]:
    """Parse turns in the template's own syntax: `call`, `parallel_calls`, `reasoning`, `reasoning_and_call`.

    Each is '' when it comes back as it was, else what came back instead.
    """
    call, calls = calls_of("tool"), calls_of("parallel_tools")
    return {
        "call": _trip(renderer, parser, Reply("", "", call)),
        "parallel_calls": _trip(renderer, parser, Reply("", "", calls)),
        "reasoning": _trip(renderer, parser, Reply(ANSWER, THOUGHT, ())),
        "reasoning_and_call": _trip(renderer, parser, Reply("", THOUGHT, call)),
    }


def _trip(renderer: Renderer, parser: ReplyParser, said: Reply) -> str:
    opened = shown(renderer, [USER], PROBE_TOOLS, {}, True)
    written = shown(renderer, [USER, reply_message(said)], PROBE_TOOLS, {})
    prompt = commonprefix([opened, written])
    text = _turn(renderer, written[len(prompt) :])
    wanted = [*(call.arguments for call in said.tool_calls), said.reasoning]
    if not all(_word(one) in text for one in wanted):
        return NOT_SHOWN
    reply = parser.parse(
        renderer.encode(text),
        finish=STOP,
        tools=PROBE_TOOLS,
        prompt_opens_think=prompt.rstrip().endswith(THINK),
        mint=lambda number: said.tool_calls[number].id if number < len(said.tool_calls) else "more",
    )
    return _difference(said, reply)


def _turn(renderer: Renderer, written: str) -> str:
    """What a model samples of `written`: all through the first stop token."""
    ends = [at + len(token) for token in renderer.stop_tokens if (at := written.find(token)) >= 0]
    return written[: min(ends)] if ends else written


def _difference(said: Reply, read: Reply) -> str:
    if read.ill_formed:
        return f"ill-formed: {_brief(read.text)}"
    if _calls(said) != _calls(read):
        return f"{len(read.tool_calls)} of {len(said.tool_calls)} calls, and the text {_brief(read.text)}"
    if said.reasoning.strip() != read.reasoning.strip():
        return f"the reasoning {_brief(read.reasoning)}, and the text {_brief(read.text)}"
    return "" if said.text.strip() == read.text.strip() else f"the text {_brief(read.text)}"


def _calls(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


def _word(text: str) -> str:
    """What a template writes of an argument or a thought, whatever its syntax."""
    if not text.startswith("{"):
        return text
    arguments: Mapping[str, str] = json.loads(text)
    return next(iter(arguments.values()))


def _brief(text: str) -> str:
    return repr(text if len(text) < 60 else text[:57] + "...")

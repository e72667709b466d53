"""sglang's own parsers, for the models they know. Only this module imports sglang, and only when a parser is named."""

# pyright: reportMissingImports=false
# sglang is optional; its parsers are used where it is installed.

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slime_agl.chat.parse.builtin import OPEN, Calls, IllFormed, object_text
from slime_agl.errors import ConfigError, closest

# A call whose arguments are written as elements, not as JSON: nothing but its end tags says that it is whole.
_MARKUP = re.compile(r"[^<{\[]*<(?:｜DSML｜)?(?:function|invoke|arg_key)\b")
_TAG = re.compile(r"<(/?)(?:｜DSML｜)?(function|invoke)\b")


class SglangCalls:
    """Reads tool calls as `--sglang-tool-call-parser NAME` would.

    Raises:
        ImportError: sglang is not installed. ConfigError: it knows no parser of that name.
    """

    def __init__(self, name: str) -> None:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.environ import envs
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        _known("--sglang-tool-call-parser", name, FunctionCallParser.ToolCallParserEnum)
        self._name, self._tool, self._parser = name, Tool, FunctionCallParser
        self._unknown_tools = envs.SGLANG_FORWARD_UNKNOWN_TOOLS

    def read(self, text: str, tools: Sequence[Mapping[str, Any]], *, cut: bool) -> Calls:
        """Read every call in `text`. cut: the turn ended by length or abort, so that its last call may be half a call.

        Raises:
            IllFormed: there is call syntax that gives no call, or that is not known to be closed.
        """
        parser = self._parser(tools=[self._tool(**tool) for tool in tools], tool_call_parser=self._name)
        if not parser.has_tool_call(text):
            return Calls(text, ())
        if cut and not _is_closed(parser.detector, text):
            raise IllFormed("a cut turn ends in a call that is not closed")
        if not _is_balanced(parser.detector, text):
            raise IllFormed("a call has more start tags than end tags")
        # A call of a tool it was not told of is the agent's to handle; sglang would drop it.
        with self._unknown_tools.override(True):
            rest, found = parser.parse_non_stream(text)
        if not found:
            raise IllFormed(f"sglang's {self._name} parser sees call syntax but no call")
        return Calls((rest or "").strip(), tuple((call.name, object_text(call.parameters)) for call in found))


class SglangReasoning:
    """Splits reasoning as `--sglang-reasoning-parser NAME` would.

    Raises:
        ImportError: sglang is not installed. ConfigError: it knows no parser of that name.
    """

    def __init__(self, name: str) -> None:
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        _known("--sglang-reasoning-parser", name, ReasoningParser.DetectorMap)
        self._name, self._parser = name, ReasoningParser

    def split(self, text: str, *, opened: bool) -> tuple[str, str]:
        """Return (reasoning, rest). opened: the prompt has already opened the reasoning.

        Some detectors take every text for reasoning; a text that shows no marker under a prompt
        that opened none is an answer.
        """
        parser = self._parser(model_type=self._name, stream_reasoning=False, force_reasoning=opened or None)
        # Detectors look for their start marker at the very beginning.
        reasoning, rest = parser.parse_non_stream(text.lstrip("\n"))
        marks = [getattr(parser.detector, name, None) for name in ("think_start_token", "think_end_token")]
        if not opened and not rest and not any(mark in text for mark in marks if mark):
            return "", text
        return (reasoning or "").strip("\n"), (rest or "").lstrip("\n")


def _is_closed(detector: Any, text: str) -> bool:
    opener, closer = getattr(detector, "bot_token", ""), getattr(detector, "eot_token", "")
    return bool(opener and closer) and text.rfind(closer.strip()) > text.rfind(opener.strip())


def _is_balanced(detector: Any, text: str) -> bool:
    opener = getattr(detector, "bot_token", "").strip() or OPEN
    begin = text.find(opener)
    if begin < 0 or not _MARKUP.match(text, begin + len(opener)):
        return True
    ends = [bool(slash) for slash, _ in _TAG.findall(text, begin)]
    return 2 * sum(ends) == len(ends)


def _known(flag: str, name: str, parsers: Mapping[str, Any]) -> None:
    if name not in parsers:
        raise ConfigError(f"{flag} {name!r} names none of sglang's {len(parsers)} parsers.{closest(name, parsers)}")

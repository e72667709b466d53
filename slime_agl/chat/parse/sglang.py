"""Parse with sglang's own parsers. sglang is imported here only, and only if a parser is named."""

# pyright: reportMissingImports=false
# sglang is optional; its parsers are used where it is installed.

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from slime_agl.chat.parse.builtin import OPEN, Calls, IllFormed, object_text
from slime_agl.errors import ConfigError, closest

# A call whose arguments are elements, not JSON: only its end tags show that it is complete.
_MARKUP = re.compile(r"[^<{\[]*<(?:｜DSML｜)?(?:function|invoke|arg_key)\b")
_TAG = re.compile(r"<(/?)(?:｜DSML｜)?(function|invoke)\b")


class SglangCalls:
    """Parses tool calls as `--sglang-tool-call-parser NAME` would.

    Raises:
        ImportError: sglang is not installed. ConfigError: it has no parser of that name.
    """

    def __init__(self, name: str) -> None:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.environ import envs
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        _known("--sglang-tool-call-parser", name, FunctionCallParser.ToolCallParserEnum)
        self._name, self._tool, self._parser = name, Tool, FunctionCallParser
        self._unknown_tools = envs.SGLANG_FORWARD_UNKNOWN_TOOLS

    def read(self, text: str, tools: Sequence[Mapping[str, object]], *, cut: bool) -> Calls:
        """Parse every call in `text`. cut: the turn ended by length or abort, so its last call may be partial.

        Raises:
            IllFormed: call syntax yields no call, or may not be closed.
        """
        parser = self._parser(tools=[self._tool(**tool) for tool in tools], tool_call_parser=self._name)
        if not parser.has_tool_call(text):
            return Calls(text, ())
        if cut and not _is_closed(parser.detector, text):
            raise IllFormed("a cut turn ends in a call that is not closed")
        if not _is_balanced(parser.detector, text):
            raise IllFormed("a call has more start tags than end tags")
        # Calls to unknown tools are for the agent to handle; sglang drops them by default.
        with self._unknown_tools.override(True):
            rest, found = parser.parse_non_stream(text)
        if not found:
            raise IllFormed(f"sglang's {self._name} parser found call syntax but no call")
        return Calls((rest or "").strip(), tuple((call.name, object_text(call.parameters)) for call in found))


class SglangReasoning:
    """Splits reasoning as `--sglang-reasoning-parser NAME` would.

    Raises:
        ImportError: sglang is not installed. ConfigError: it has no parser of that name.
    """

    def __init__(self, name: str) -> None:
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        _known("--sglang-reasoning-parser", name, ReasoningParser.DetectorMap)
        self._name, self._parser = name, ReasoningParser

    def split(self, text: str, *, opened: bool) -> tuple[str, str]:
        """Return (reasoning, rest). opened: the prompt already opened the reasoning.

        Some detectors treat any text as reasoning; without a marker in the text or the prompt, the text is the answer.
        """
        parser = self._parser(model_type=self._name, stream_reasoning=False, force_reasoning=opened or None)
        # Detectors expect their start marker at the very start of the text.
        reasoning, rest = parser.parse_non_stream(text.lstrip("\n"))
        marks = [getattr(parser.detector, name, None) for name in ("think_start_token", "think_end_token")]
        if not opened and not rest and not any(mark in text for mark in marks if mark):
            return "", text
        return (reasoning or "").strip("\n"), (rest or "").lstrip("\n")


def _is_closed(detector: object, text: str) -> bool:
    opener, closer = getattr(detector, "bot_token", ""), getattr(detector, "eot_token", "")
    return bool(opener and closer) and text.rfind(closer.strip()) > text.rfind(opener.strip())


def _is_balanced(detector: object, text: str) -> bool:
    opener = getattr(detector, "bot_token", "").strip() or OPEN
    begin = text.find(opener)
    if begin < 0 or not _MARKUP.match(text, begin + len(opener)):
        return True
    ends = [bool(slash) for slash, _ in _TAG.findall(text, begin)]
    return 2 * sum(ends) == len(ends)


def _known(flag: str, name: str, parsers: Mapping[str, object]) -> None:
    if name not in parsers:
        raise ConfigError(f"{flag} {name!r} is not one of sglang's {len(parsers)} parsers.{closest(name, parsers)}")

"""Parse a finished turn's ids into text, reasoning and tool calls."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from slime_agl.chat.parse.builtin import FUNCTION, OPEN, Calls, IllFormed, read_calls
from slime_agl.chat.parse.harmony import NAME as HARMONY
from slime_agl.chat.parse.harmony import HarmonyCalls, HarmonyReasoning
from slime_agl.chat.parse.sglang import SglangCalls, SglangReasoning
from slime_agl.chat.template.messages import END_THINK, Reply, ToolCall, split_think
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import ConfigError
from slime_agl.trace.turn import STOP

logger = logging.getLogger(__name__)

_NO_NAME = re.compile(r"[\s{}\[\]<>\"'`|]")

S = TypeVar("S")
H = TypeVar("H")


class ReplyParser:
    """Parses turns of one model.

    tool_call_parser, reasoning_parser: names of sglang's parsers. Without a name, or without sglang, the built-in ones
    parse `<tool_call>` (JSON or XML) and `<think>`; 'gpt-oss' is always built in.
    readers: names of the parsers in use.

    Raises:
        ConfigError: sglang is installed and has no parser of that name.
    """

    def __init__(
        self, renderer: Renderer, *, tool_call_parser: str | None = None, reasoning_parser: str | None = None
    ) -> None:
        self._renderer = renderer
        self._calls = _named(SglangCalls, HarmonyCalls, tool_call_parser)
        self._reasoning = _named(SglangReasoning, HarmonyReasoning, reasoning_parser)
        self.readers = {
            "tool_calls": _reader(self._calls, tool_call_parser),
            "reasoning": _reader(self._reasoning, reasoning_parser),
        }

    def parse(
        self,
        ids: Sequence[int],
        *,
        finish: str,
        tools: list[dict] | None,
        prompt_opens_think: bool = False,
        begun: str = "",
        mint: Callable[[int], str],
    ) -> Reply:
        """Parse a turn. Never raises, whatever the model wrote.

        finish: 'stop', 'length' or 'abort'. tools: without tools, call syntax stays text.
        prompt_opens_think: the generation prompt ends in an open `<think>`.
        begun: the start of the reply that the prompt already contained.
        mint: returns the id of the k-th call, from 0.

        A cut turn yields calls only if all its call syntax is closed. If call syntax yields no call, or a parser fails,
        the reply is the raw text, flagged ill-formed, so that no partial call can be executed.
        """
        cut = finish != STOP
        text = said = begun + self._text(ids)
        reasoning = ""
        try:
            reasoning, said = self._split(text, opened=prompt_opens_think, cut=cut)
            if not tools:
                return Reply(said, reasoning, ())
            found = self._read(said, tools, cut=cut)
            _require_names(found, tools)
        except IllFormed as error:
            logger.debug("ill-formed tool call (finish %s): %s", finish, error)
            return Reply(said, reasoning, (), ill_formed=True)
        except Exception:  # a parser must never break a turn: its tokens are already sampled
            logger.warning("parser failed on a turn of %d tokens; replying with its text", len(ids), exc_info=True)
            return Reply(said, reasoning, (), ill_formed=True)
        calls = tuple(ToolCall(mint(k), name, arguments) for k, (name, arguments) in enumerate(found.calls))
        return Reply(found.text, reasoning, calls)

    def _text(self, ids: Sequence[int]) -> str:
        """Decode without the final stop id, but with all other special tokens."""
        ended = bool(ids) and ids[-1] in self._renderer.stop_ids
        return self._renderer.decode(ids[:-1] if ended else ids)

    def _split(self, text: str, *, opened: bool, cut: bool) -> tuple[str, str]:
        if self._reasoning is not None:
            return self._reasoning.split(text, opened=opened)
        thought = split_think(text, opened=opened)
        if thought is None:
            return "", text
        if END_THINK not in text and OPEN in thought[0] and not cut:
            # Qwen models sometimes call without closing their reasoning first.
            reasoning, _, call = thought[0].partition(OPEN)
            return reasoning.strip("\n"), OPEN + call
        return thought

    def _read(self, text: str, tools: list[dict], *, cut: bool) -> Calls:
        if self._calls is None:
            return read_calls(text, tools)
        try:
            found = self._calls.read(text, tools, cut=cut)
        except IllFormed:
            if OPEN not in text:
                raise
        else:
            if text.count(OPEN) <= len(found.calls) and (found.calls or FUNCTION not in text):
                return found
        # Some call syntax was skipped by sglang.
        return read_calls(text, tools)


def _require_names(found: Calls, tools: list[dict]) -> None:
    """Refuse names that cannot be tools: some parsers take a whole block of another syntax for a name.

    Raises:
        IllFormed: a name is not among `tools` and has characters that names do not have.
    """
    offered = {(tool.get("function") or {}).get("name") for tool in tools}
    for name, _ in found.calls:
        if name not in offered and _NO_NAME.search(name):
            raise IllFormed(f"a call's name is {name[:60]!r}, not the name of a tool")


def _named(sglangs: Callable[[str], S], harmony: Callable[[], H], name: str | None) -> S | H | None:
    """Return the parser of that name; None for the built-in one."""
    if not name or name == HARMONY:
        return harmony() if name else None
    try:
        return sglangs(name)
    except ConfigError:
        raise
    except Exception as error:  # importing sglang loads GPU libraries, which can raise anything
        logger.warning("sglang's parser %r is not available (%s); using the built-in one", name, error)
        return None


def _reader(parser: object, name: str | None) -> str:
    if parser is None:
        return "built-in"
    return f"built-in for {name}" if name == HARMONY else f"sglang's {name}"

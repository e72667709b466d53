"""Parse gpt-oss turns: messages in channels, in OpenAI's harmony format.

Models write recipient and channel in either order. sglang's parser of this name knows one order and silently drops
calls in the other, so turns of these models are always parsed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from slime_agl.chat.parse.builtin import Calls, IllFormed, object_text

NAME = "gpt-oss"
_BETWEEN = re.compile(r"(?<=<\|end\|>)<\|start\|>assistant|(?<=<\|call\|>)<\|start\|>assistant")
_END = re.compile(r"<\|(?:end|call|return)\|>\s*$")
_RECIPIENT = re.compile(r"\bto=([\w.-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_MESSAGE = "<|message|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """raw: as written. recipient: of a call, else ''. begun: its content has begun. closed: an end token follows."""

    raw: str
    channel: str
    recipient: str
    content: str
    begun: bool
    closed: bool


class HarmonyReasoning:
    """Treats the analysis channel as reasoning."""

    def split(self, text: str, *, opened: bool) -> tuple[str, str]:
        """Return (reasoning, rest). In a turn with calls the rest keeps its markers, for `HarmonyCalls`."""
        messages = list(_messages(text))
        thoughts = [m for m in messages if m.channel == "analysis" and not m.recipient]
        others = [m for m in messages if m not in thoughts]
        calling = any(message.recipient for message in others)
        rest = "<|start|>assistant".join(m.raw for m in others) if calling else "\n".join(m.content for m in others)
        return "\n".join(message.content for message in thoughts), rest


class HarmonyCalls:
    """Treats messages with a recipient as calls."""

    def read(self, text: str, tools: Sequence[Mapping[str, object]], *, cut: bool) -> Calls:
        """Parse every call in `text`. cut: the turn ended by length or abort.

        Raises:
            IllFormed: arguments are not a JSON object, or the last call of a cut turn is not closed.
        """
        messages = list(_messages(text))
        calls = []
        for at, message in enumerate(messages, 1):
            if message.recipient:
                if not message.begun or (cut and at == len(messages) and not message.closed):
                    raise IllFormed(f"the call to {message.recipient} is not closed")
                calls.append((message.recipient.removeprefix("functions."), object_text(message.content.strip())))
        said = [m.content for m in messages if not m.recipient and m.channel != "analysis"]
        return Calls("\n".join(said).strip(), tuple(calls)) if calls else Calls(text, ())


def _messages(text: str) -> Iterator[_Message]:
    """Yield the messages of a turn. Text without markers is one message."""
    if _MESSAGE not in text and not _RECIPIENT.search(text.partition("<|")[0]) and "<|channel|>" not in text:
        yield _Message(raw=text, channel="final", recipient="", content=text, begun=True, closed=False)
        return
    for raw in _BETWEEN.split(text):
        head, begun, content = raw.partition(_MESSAGE)
        recipient, channel = _RECIPIENT.search(head), _CHANNEL.search(head)
        end = _END.search(content)
        yield _Message(
            raw=raw,
            channel=channel[1] if channel else "final",
            recipient=recipient[1] if recipient else "",
            content=content[: end.start()] if end else content,
            begun=bool(begun),
            closed=end is not None,
        )

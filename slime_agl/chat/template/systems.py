"""Show system messages where a template does not take them.

Many templates take one system message, at the beginning; agents send several there, and more in the middle of a
conversation. What is done is local to the messages between two assistant turns, so the tokens of earlier turns never
change: those at the beginning become one message, and later ones are shown where they stand, as the template can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BREAK = "\n\n"

Later = Literal["as_sent", "as_user", "joined"]
"""How a later system message is shown: as sent; as a user message of its own; or joined to the user message or tool
result before it, else to the user message after it, for templates in which users and assistants must alternate."""


@dataclass(frozen=True, slots=True)
class Systems:
    """folds: several leading system messages become one. later: how further ones are shown."""

    folds: bool = False
    later: Later = "as_sent"

    def shown(self, messages: Sequence[dict], *, first: bool) -> list[dict]:
        """Return normalised messages as the template is given them; the input is not modified.

        first: they begin a conversation; else they follow an assistant turn.
        """
        lead = next((at for at, m in enumerate(messages) if m["role"] != "system"), len(messages)) if first else 0
        head = list(messages[:lead])
        if self.folds and lead > 1:
            head = [{"role": "system", "content": BREAK.join(message["content"] for message in head)}]
        rest = messages[lead:]
        if self.later == "as_user":
            return head + [_as_user(message) if message["role"] == "system" else message for message in rest]
        return head + (_joined(rest) if self.later == "joined" else list(rest))


def _joined(messages: Sequence[dict]) -> list[dict]:
    """Join each system message to the user message or tool result before it, else to the next user message."""
    told: list[dict] = []
    waiting: list[dict] = []
    for message in messages:
        if message["role"] == "system":
            if told and told[-1]["role"] in ("user", "tool"):
                told[-1] = _with_text(told[-1], message["content"], before=False)
            else:
                waiting.append(message)
        elif waiting and message["role"] == "user":
            told.append(_with_text(message, _text(waiting), before=True))
            waiting = []
        else:
            if waiting:
                told.append({"role": "user", "content": _text(waiting)})
                waiting = []
            told.append(message)
    return [*told, {"role": "user", "content": _text(waiting)}] if waiting else told


def _text(messages: Sequence[dict]) -> str:
    return BREAK.join(message["content"] for message in messages)


def _as_user(message: dict) -> dict:
    return {"role": "user", "content": message["content"]}


def _with_text(message: dict, text: str, *, before: bool) -> dict:
    content = message["content"]
    if isinstance(content, str):
        both = (text, content) if before else (content, text)
        return {**message, "content": BREAK.join(part for part in both if part)}
    part = {"type": "text", "text": text}
    return {**message, "content": [part, *content] if before else [*content, part]}

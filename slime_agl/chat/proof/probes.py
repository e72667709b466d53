"""Trial conversations for chat templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from slime_agl.chat.template.messages import Reply, ToolCall, reply_message
from slime_agl.chat.template.shape import PROBE_TOOLS
from slime_agl.chat.template.tail import Continuation
from slime_agl.chat.template.tools import Tools

ANSWER, THOUGHT, VALUE = "the seventh gate stands open", "counting gates along the wall", "quartz lantern"
KINDS = (
    "user",
    "again",
    "system",
    "system_then_user",
    "tool",
    "parallel_tools",
    "tool_then_user",
    "parallel_tools_then_user",
    "tool_then_system",
    "call_then_user",
    "parallel_calls_then_user",
    "user_then_prefill",
    "tool_then_prefill",
)
LONGEST_KIND = 4
# Words of the new messages; each occurs nowhere else in a conversation.
RESULTS, ASKED, TOLD = ("nightfall", "landfall"), "foghorn", "halyard"
USER = {"role": "user", "content": "Is the harbour free?"}
KEPT = "semaphore"
SYSTEM = {"role": "system", "content": f"You keep a {KEPT}."}
_OPENED = "The harbour is"
_HEADS = ("tool", "parallel_tools", "call", "parallel_calls")
NEXT = {
    "user": {"role": "user", "content": f"And the {ASKED}?\n\nPlease say."},
    "system": {"role": "system", "content": f"Mind the {TOLD}."},
}


class Probe(Struct, frozen=True):
    """A continuation of a known kind. words: the last words of the continued turn.

    news: (role, word) of each new message; the word occurs nowhere else.
    """

    continuation: Continuation
    words: str
    news: tuple[tuple[str, str], ...]


def can_try(kind: str) -> bool:
    """Check that there are probes of this kind: results of calls, then user and system messages, then a prefill."""
    head, *rest = parts = kind.split("_then_")
    speakers = rest if head in _HEADS else parts
    speakers = speakers[:-1] if speakers[-1:] == ["prefill"] else speakers
    return kind == "again" or (len(parts) <= LONGEST_KIND and all(role in NEXT for role in speakers))


def probes(kind: str, kwargs: Mapping[str, object], *, reasoning: bool, shows_calls: bool) -> Iterator[Probe]:
    """Yield continuations of one kind: first turn, after talk, after tools, within a chain of tools, and doubled.

    shows_calls: the template writes calls. Turns with calls then have no text, because some templates move such text
    behind the results; otherwise the text is the only way to find the turn.
    """
    calls = calls_of(kind)
    words = VALUE if calls and shows_calls else ANSWER
    reply = Reply("" if words == VALUE else ANSWER, THOUGHT if reasoning else "", calls)
    new_messages = _new_messages(kind, calls)
    prefill = _OPENED if kind.endswith("prefill") else None
    contexts = list(_contexts(reasoning, needs_tools=bool(calls)))
    cases = [(context, tools, new_messages) for context, tools in contexts]
    if new_messages:
        cases.append((*contexts[0], [message for message in new_messages for _ in range(2)]))
    for context, tools, new in cases:
        yield Probe(
            Continuation(
                context=context,
                reply=reply,
                new_messages=new,
                tools=tools,
                kwargs=dict(kwargs),
                last_id=None,
                prefill=prefill,
            ),
            words,
            _news(new),
        )


def calls_of(kind: str) -> tuple[ToolCall, ...]:
    """Return the calls of the continued turn of a kind. The last one's argument is VALUE."""
    if kind.startswith("parallel_"):
        return (_call(1, "first lantern"), _call(2, VALUE))
    return (_call(1, VALUE),) if kind.startswith(("tool", "call")) else ()


def _new_messages(kind: str, calls: tuple[ToolCall, ...]) -> list[dict]:
    head, *_ = parts = kind.split("_then_")
    answered = head in ("tool", "parallel_tools")
    results = [result_of(call, f"lit since {word}") for call, word in zip(calls, RESULTS, strict=False)] * answered
    return results + [NEXT[role] for role in parts if role in NEXT]


def _contexts(reasoning: bool, *, needs_tools: bool) -> Iterator[tuple[list[dict], Tools | None]]:
    earlier = ToolCall("probe0000", "probe_tool", '{"probe": "old lamp"}')
    thought = "an older thought" if reasoning else ""
    called = [SYSTEM, USER, reply_message(Reply("", thought, (earlier,))), result_of(earlier, "lit since dusk")]
    talked = [reply_message(Reply("It is.", thought, ())), USER]
    if not needs_tools:
        yield [USER], None
        yield [SYSTEM, USER, *talked], None
    yield [USER], PROBE_TOOLS
    yield [SYSTEM, USER, *talked], PROBE_TOOLS
    yield [*called, *talked], PROBE_TOOLS
    yield called, PROBE_TOOLS


def _call(number: int, value: str) -> ToolCall:
    return ToolCall(f"probe000{number}", "probe_tool", f'{{"probe": "{value}"}}')


def result_of(call: ToolCall, said: str) -> dict:
    """Return the message that answers `call`."""
    return {"role": "tool", "content": said, "tool_call_id": call.id, "name": call.name}


def _news(messages: list[dict]) -> tuple[tuple[str, str], ...]:
    said = [(message["role"], message["content"]) for message in messages]
    return tuple(dict.fromkeys((role, word) for role, text in said for word in (*RESULTS, ASKED, TOLD) if word in text))

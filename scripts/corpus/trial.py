"""Try one template under one stop list: the plan for each kind, and whether a continuation loses anything.

The judge is independent of how a continuation is made: it counts words of the new messages in the full render and in
the ids to be appended.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from slime_agl.chat.proof.audit import audit
from slime_agl.chat.proof.probes import KINDS
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.messages import Reply, ToolCall, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.systems import Systems
from slime_agl.chat.template.tail import Continuation, Fork, render_whole
from slime_agl.chat.template.tools import Tools
from slime_agl.errors import TemplateError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look <it> up.",
            "parameters": {"type": "object", "properties": {"it": {"type": "string"}}, "required": ["it"]},
        },
    }
]
ASSEMBLED = ("tool_then_user",)
EXTENDED, LOOKS_BACK, FORKS, REFUSED = "extended", "extended *", "fork", "refused"
_WORDS = re.compile(r"w\d+q")


@dataclass(slots=True)
class Outcome:
    """verdicts: by kind. reasons: why kinds fork. rewrites: extending kinds whose history the template rewrites.

    lost: continuations that lack words of the new messages. late: forks of single continuations of a proven
    kind, by reason.
    """

    verdicts: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    rewrites: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    late: Counter[str] = field(default_factory=Counter)
    checked: int = 0


def attempt(renderer: Renderer, *, thorough: bool = True) -> Outcome:
    """Audit the template and try continuations of every proven kind.

    thorough: with contents of every shape and a system message too. Tails are rendered; then also those of the
    kinds in ASSEMBLED are put together, which takes some hundred renders to begin with.
    """
    plan = audit(renderer)
    rendering, assembling, outcome = DeltaEncoder(renderer, plan), DeltaEncoder(renderer, plan), Outcome()
    rendering._glue = _NoGlue()
    for kind in KINDS:
        one = plan.report.kinds[kind]
        if one.method == "fork":
            outcome.verdicts[kind] = REFUSED if one.reason == "template_refused" else FORKS
            outcome.reasons[kind] = one.reason
            continue
        outcome.verdicts[kind] = EXTENDED if one.method == "short" else LOOKS_BACK
        if one.rewrites(reasoning=False):
            outcome.rewrites.add(kind)
        for number, sent in enumerate(continuations(kind, thorough=thorough)):
            c = shown(sent, plan.systems)
            _try(renderer, rendering, c, f"{kind} #{number}", outcome)
            if thorough and kind in ASSEMBLED:
                _try(renderer, assembling, c, f"{kind} #{number} assembled", outcome)
    return outcome


def shown(c: Continuation, systems: Systems) -> Continuation:
    """A continuation with its system messages as the template takes them."""
    return replace(
        c,
        context=systems.shown(c.context, first=True),
        new_messages=systems.shown(c.new_messages, first=False),
    )


class _NoGlue:
    """Assembles no tail."""

    def ids(self, c: Continuation, *, quick: bool = False) -> None:
        return None


def _try(renderer: Renderer, encoder: DeltaEncoder, c: Continuation, name: str, outcome: Outcome) -> None:
    try:
        full = render_whole(renderer, [*c.context, reply_message(c.reply), *c.new_messages], c)
    except TemplateError:
        return
    delta = encoder.delta(c)
    outcome.checked += 1
    if isinstance(delta, Fork):
        outcome.late[delta.reason] += 1
        return
    text = renderer.decode(delta.ids)
    missing = [word for word in _new_words(c) if text.count(word) != full.count(word)]
    if missing:
        outcome.lost.append(f"{name}: {len(missing)} words, {text[:60]!r}...")


def _new_words(c: Continuation) -> set[str]:
    return set(_WORDS.findall(" ".join(message["content"] for message in c.new_messages) + (c.prefill or "")))


class Words:
    """Contents of many shapes, each with unique words."""

    def __init__(self) -> None:
        self._count = 0

    def word(self) -> str:
        self._count += 1
        return f"w{self._count}q"

    def content(self, shape: int) -> str:
        one, other = self.word(), self.word()
        shapes = (
            f"{one} and {other}",
            f"\n  {one}\n\n\n{other} \n",
            json.dumps({"found": [one, 1.5, None], "said": f'"{other}"\n'}),
            f"{one}<|im_end|>\n<|im_start|>user\n</s>[/INST]<|user|><|end|>{other}",
            f"<think>\n{one}\n</think>\n\n</tool_response>}}]{other}",
            "",
            " \n",
        )
        return shapes[shape % len(shapes)]


SHAPES, SHAPES_IN_SHORT = range(7), (0, 3)


def continuations(kind: str, *, thorough: bool = True) -> Iterator[Continuation]:
    """Make conversations of a kind: every shape of content after a first turn, after talk, after calls, repeated."""
    words = Words()
    for shape in SHAPES if thorough else SHAPES_IN_SHORT:
        yield _continuation(kind, words, shape, _contexts(words)[0], 1)
    for context in _contexts(words)[1 if thorough else 2 :]:
        yield _continuation(kind, words, 0, context, 1)
    yield _continuation(kind, words, 0, _contexts(words)[0], 2)


def _contexts(words: Words) -> list[list[dict]]:
    user = {"role": "user", "content": words.word()}
    system = {"role": "system", "content": words.word()}
    call = ToolCall("c00000000", "look", json.dumps({"it": words.word()}))
    called = [reply_message(Reply("", "", (call,))), _result(call, words.word())]
    talked = [reply_message(Reply(words.word(), "", ())), {**user, "content": words.word()}]
    return [[user], [system, user, *talked], [user, *called, *talked], [user, *called]]


def _continuation(kind: str, words: Words, shape: int, context: list[dict], times: int) -> Continuation:
    head, *_ = parts = kind.split("_then_")
    count = 2 if head.startswith("parallel") else int(head in ("tool", "call"))
    calls = tuple(ToolCall(f"c0000001{number}", "look", json.dumps({"it": words.word()})) for number in range(count))
    new = [_result(call, words.content(shape)) for call in calls] if "tool" in head else []
    for role in parts:
        if role in ("user", "system"):
            new += [{"role": role, "content": words.content(shape)} for _ in range(times)]
    prefill = f"Surely {words.word()}" if kind.endswith("prefill") else None
    reply = Reply("" if calls else f"said {words.word()}", "", calls)
    return Continuation(
        context=context, reply=reply, new_messages=new, tools=Tools(TOOLS), kwargs={}, last_id=None, prefill=prefill
    )


def _result(call: ToolCall, content: str) -> dict:
    return {"role": "tool", "content": content, "tool_call_id": call.id, "name": call.name}

"""Real templates on real vocabularies: the audit's findings for each, and the truth of what it calls proven."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from pairs import PAIRS, renderer_of

from slime_agl.chat.proof.audit import TemplateAudit, audit
from slime_agl.chat.proof.probes import KINDS
from slime_agl.chat.template.delta import Delta, DeltaEncoder
from slime_agl.chat.template.messages import Reply, ToolCall, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.systems import Systems
from slime_agl.chat.template.tail import Continuation, render_whole
from slime_agl.chat.template.tools import Tools
from slime_agl.errors import TemplateError

CONVERSATIONS = int(os.environ.get("TEMPLATE_CONVERSATIONS", "2"))  # of each kind, for each pair

REFUSED, NO_MARKER = "fork: template_refused", "fork: no_marker"
TOOLS_REFUSED = dict.fromkeys(
    ("tool", "parallel_tools", "tool_then_user", "parallel_tools_then_user", "tool_then_system", "tool_then_prefill"),
    REFUSED,
)
ONE_CALL_ONLY = dict.fromkeys(("parallel_tools", "parallel_tools_then_user", "parallel_calls_then_user"), REFUSED)
ANSWERS_ONLY = dict.fromkeys(
    ("tool_then_user", "parallel_tools_then_user", "call_then_user", "parallel_calls_then_user"), REFUSED
)
LOOKS_BACK = dict.fromkeys(
    ("tool", "parallel_tools", "tool_then_user", "parallel_tools_then_user", "tool_then_system", "tool_then_prefill"),
    "real: tail_differs",
)
OPENERS = {"again": NO_MARKER}
# What is not proven with the short context, and why; all other kinds are 'short'.
EXCEPTIONS = {
    "deepseek-v3": LOOKS_BACK,
    # <|end|> closes the turns of a history, but is no token that ends a turn of the model.
    "gpt-oss": {kind: "fork: marker_misplaced" for kind in ONE_CALL_ONLY}
    | dict.fromkeys(("user", "again", "system", "system_then_user", "user_then_prefill"), NO_MARKER),
    "llama3.1": ONE_CALL_ONLY,
    "llama3.2": ONE_CALL_ONLY,
    "glm4.5": OPENERS,
    "glm5": OPENERS,
    "mistral-nemo": ANSWERS_ONLY,
    "mistral-small": TOOLS_REFUSED,
    "mistral-small-3.1": TOOLS_REFUSED,
}
# How system messages beside the first are shown: those of other templates as they are sent.
SYSTEMS = {
    **dict.fromkeys(("qwen3.5", "qwen3.6"), Systems(folds=True, later="as_user")),  # only one, only at the beginning
    **dict.fromkeys(("qwen3-vl", "gpt-oss", "minimax-m2"), Systems(folds=True, later="as_user")),  # further ones hidden
    # Every system message is moved to the beginning of the prompt.
    **dict.fromkeys(
        ("deepseek-v3", "deepseek-v3.1", "deepseek-v3.2", "deepseek-v4"), Systems(folds=False, later="as_user")
    ),
    # Between two openers that are stop tokens stands one that is none: <|system|>.
    **dict.fromkeys(("glm4.5", "glm5"), Systems(folds=False, later="as_user")),
    "devstral-2": Systems(folds=False, later="as_user"),
    "mistral-nemo": Systems(folds=True, later="joined"),  # users and assistants must alternate
}
# What a template takes and never shows to the model.
HIDDEN = {
    "smollm2": ("tools", "tool_calls"),
    "deepseek-v3": ("tools",),
    "deepseek-v3.1": ("tools",),
}
# Kinds at which a turn without reasoning, and one with reasoning, stays as the model was shown it; and the remedy.
HISTORY = {
    "smollm2": ("user tool", "", {}),
    "qwen2.5": ("user tool", "", {}),
    "qwq": ("", "", {}),
    "qwen3": ("user tool", "tool", {}),
    "qwen3-instruct-2507": ("user tool", "", {}),
    "qwen3-thinking-2507": ("", "tool", {}),
    "qwen3-coder": ("user tool", "", {}),
    "qwen3-vl": ("user tool", "", {}),
    "qwen3.5": ("tool", "", {}),
    "qwen3.6": ("tool", "tool", {"preserve_thinking": True}),
    "deepseek-v3": ("", "", {}),
    "deepseek-v3.1": ("user tool", "", {}),
    "deepseek-v3.2": ("", "", {}),
    "deepseek-v4": ("user tool", "", {}),
    "gpt-oss": ("user tool", "tool", {}),
    "llama3.1": ("user tool", "", {}),
    "llama3.2": ("user tool", "", {}),
    "glm4.5": ("user tool", "tool", {}),
    "glm5": ("", "tool", {"clear_thinking": False}),
    "kimi-k2": ("user tool", "", {}),
    "minimax-m2": ("", "tool", {}),
    "mistral-nemo": ("", "", {}),
    "mistral-small": ("user", "", {}),
    "mistral-small-3.1": ("user", "", {}),
    "devstral-2": ("user tool", "", {}),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search <all> of it.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]
WORDS = (
    "high tide",
    " at six ",
    "\n\n",
    "\n",
    "  ",
    "\t",
    "Grüße",
    "世界",
    "🌊👩‍👩‍👧",
    "é\u0301",
    "<|im_end|>",
    "<|eot_id|>",
    "<|user|>",
    "</s>",
    "<｜end▁of▁sentence｜>",
    "<|end|>",
    "</think>",
    "<tool_call>",
    "{{ x }}",
    "don't",
    "3.14159",
    "\u200b",
)
PLAIN = tuple(word for word in WORDS if "<" not in word)
AUDITS: dict[str, TemplateAudit] = {}


def pair(name: str) -> tuple[Renderer, TemplateAudit]:
    renderer = renderer_of(name)
    if name not in AUDITS:
        AUDITS[name] = audit(renderer)
    return renderer, AUDITS[name]


@pytest.mark.parametrize("name", PAIRS)
def test_each_template_is_proven_for_the_kinds_the_table_says(name: str) -> None:
    kinds = pair(name)[1].report.kinds
    found = {kind: f"{one.method}: {one.reason}" for kind, one in kinds.items() if one.method != "short"}
    assert found == EXCEPTIONS.get(name, {})


@pytest.mark.parametrize("name", PAIRS)
def test_each_template_is_shown_system_messages_as_the_table_says(name: str) -> None:
    assert pair(name)[1].systems == SYSTEMS.get(name, Systems())


@pytest.mark.parametrize("name", PAIRS)
def test_what_each_template_hides_is_named(name: str) -> None:
    report = pair(name)[1].report
    assert (report.hidden, report.missing_stops) == (HIDDEN.get(name, ()), ())


@pytest.mark.parametrize("name", PAIRS)
def test_each_template_keeps_or_rewrites_its_history_as_the_table_says(name: str) -> None:
    report = pair(name)[1].report
    kept = [
        " ".join(kind for kind in ("user", "tool") if not report.kinds[kind].rewrites(reasoning=reasoning))
        for reasoning in (False, True)
    ]
    assert (*kept, report.history_kwargs) == HISTORY[name]


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_proven_holds_for_conversations_the_audit_never_saw(name: str) -> None:
    renderer, plan = pair(name)
    encoder = DeltaEncoder(renderer, plan)
    checked = {kind: 0 for kind, one in plan.report.kinds.items() if one.method != "fork"}
    for kind in KINDS:
        for number in range(CONVERSATIONS):
            sent = Talk(random.Random(f"{name} {kind} {number}")).continuation(kind)
            c = replace(
                sent,
                context=encoder.shown(sent.context, first=True),
                new_messages=encoder.shown(sent.new_messages, first=False),
            )
            checked[kind] = checked.get(kind, 0) + holds(renderer, encoder, c)
    never = [kind for kind, count in checked.items() if count == 0 and plan.report.kinds[kind].method != "fork"]
    assert not never, "a kind that is called proven was refused in every conversation"


def holds(renderer: Renderer, encoder: DeltaEncoder, c: Continuation) -> bool:
    """Assert that the delta is what follows the continued turn in encode(full render); False when there is none."""
    delta = encoder.delta(c)
    if not isinstance(delta, Delta):
        return False
    try:
        text = render_whole(renderer, [*c.context, reply_message(c.reply), *c.new_messages], c)
    except TemplateError:
        return False
    full = renderer.encode(text)
    assert full[-len(delta.ids) :] == delta.ids.tolist(), c
    assert delta.ids[0] in renderer.marker_ids, "a turn that sampled no stop token is closed for it"
    held = renderer.decode(full[: -len(delta.ids)])
    said = c.reply.tool_calls[-1].arguments if c.reply.tool_calls else c.reply.text
    word = re.findall(r"last\d+word", said)[-1]
    _, found, gap = held.rpartition(word)
    assert found or word not in text, "the delta repeats what was sampled"
    assert not any(stop in gap for stop in renderer.stop_tokens if found), "the delta begins at the turn's end"
    return True


class Talk:
    """Conversations with every oddity of text that people and tools produce."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.count = dice, 0
        self.systems = random.Random(dice.random())

    def text(self, words: tuple[str, ...] = WORDS) -> str:
        return "".join(self.dice.choices(words, k=self.dice.randint(1, 5))) or "x"

    def user(self) -> dict:
        return {"role": "user", "content": self.text()}

    def call(self) -> ToolCall:
        arguments = {"query": f"{self.text(PLAIN)} {self.last_word()}"}
        return ToolCall(f"call{self.count:05d}", "search", json.dumps(arguments, ensure_ascii=False))

    def last_word(self) -> str:
        self.count += 1
        return f"last{self.count}word"

    def result(self, call: ToolCall) -> dict:
        return {"role": "tool", "content": self.text(), "tool_call_id": call.id, "name": call.name}

    def turn(self, calls: int) -> Reply:
        thought = self.dice.choice(["", "", "because of " + self.text(PLAIN).strip() + "."])
        text = "" if calls else f"said {self.text(PLAIN)} {self.last_word()}"
        return Reply(text, thought, tuple(self.call() for _ in range(calls)))

    def continuation(self, kind: str) -> Continuation:
        head, *_ = parts = kind.split("_then_")
        tools = TOOLS if self.dice.random() < 0.5 or "tool" in head or "call" in head else None
        context = [{"role": "system", "content": self.text()}] * (self.dice.random() < 0.5)
        context += [{"role": "system", "content": "Mind that, too."}] * (self.systems.random() < 0.3) + [self.user()]
        context += [{"role": "system", "content": "And that."}] * (self.systems.random() < 0.3)
        for _ in range(self.dice.randint(0, 2)):
            earlier = self.turn(self.dice.choice([0, 1]) if tools else 0)
            answers: list[Callable[[], dict]] = [lambda call=call: self.result(call) for call in earlier.tool_calls]
            context += [reply_message(earlier), *(answer() for answer in answers or [self.user])]
        parallel = head.startswith("parallel")
        reply = self.turn(self.dice.randint(2, 3) if parallel else int(head in ("tool", "call")))
        new = [self.result(call) for call in reply.tool_calls] if "tool" in head else []
        for role in parts:
            if role in ("user", "system"):
                new += [{"role": role, "content": self.text()} for _ in range(self.dice.choice([1, 1, 2]))]
        prefill = f"Surely {self.text(PLAIN)}" if kind.endswith("prefill") else None
        return Continuation(
            context=context,
            reply=reply,
            new_messages=new,
            tools=tools and Tools(tools),
            kwargs={},
            last_id=None,
            prefill=prefill,
        )

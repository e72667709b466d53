"""Cutting a tail never drops part of the new messages."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from slime_agl.chat.proof.audit import audit
from slime_agl.chat.proof.probes import KINDS
from slime_agl.chat.proof.report import KindReport, MissingStop
from slime_agl.chat.template.delta import Delta, DeltaEncoder
from slime_agl.chat.template.messages import Reply, ToolCall
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.seams import BEHIND, ELSEWHERE, Seams
from slime_agl.chat.template.systems import Systems
from slime_agl.chat.template.tail import Continuation, Fork, Tail, tail_of

MakeRenderer = Callable[[list[str], str], Renderer]

# A turn of calls ends with <call_end>, one of words with <end>; both stand behind results and questions too.
CALL_END = """\
{%- for m in messages -%}
{%- if m.role == 'tool' %}{{ '[' + m.content + ']<end>' }}
{%- else %}{{ '<' + m.role + '>' + m.content }}
{%- for c in m.tool_calls or [] %}{{ c.function.name + (c.function.arguments | tojson) }}{% endfor -%}
{{- '<call_end>' if m.tool_calls else '<end>' }}{% endif -%}
{%- endfor -%}
{{- '<assistant>' if add_generation_prompt }}"""
TOKENS = ["<end>", "<call_end>", "<user>", "<assistant>", "<other>"]
USER = {"role": "user", "content": "hi"}
CALL = ToolCall("call00001", "search", '{"query": "tides"}')
RESULT = {"role": "tool", "content": "high at six", "tool_call_id": "call00001", "name": "search"}
ODD = (
    "",
    " ",
    "\n\n",
    "}",
    "]",
    '"',
    "[",
    "<end>",
    "<call_end>",
    "<end>x<call_end>",
    "Sntnl0x0",
    "Mrk0x",
    "</tool_call>",
    " ends \n",
    '{"a": "}<end>"}',
    "high at six",
    "é́ 日本 👍🏽",
    "{{ x }}",
    "null",
    "x" * 3000,
)


class Everything:
    """A plan that calls every kind proven."""

    closes_turns = True

    def method(self, kind: str, kwargs: object) -> str:
        return "short"

    def rewrites(self, kind: str, kwargs: object, *, reasoning: bool) -> bool:
        return False


def make(make_renderer: MakeRenderer, template: str, *stops: str, tokens: list[str] = TOKENS) -> Renderer:
    renderer = make_renderer(tokens, template)
    renderer._set_stop_ids(frozenset(renderer.encode(stop)[0] for stop in stops))
    return renderer


def after(*new: dict, calls: tuple[ToolCall, ...] = (CALL,)) -> Continuation:
    return Continuation(
        context=[USER],
        reply=Reply("" if calls else "yes", "", calls),
        new_messages=list(new),
        tools=None,
        kwargs={},
        last_id=None,
    )


def result_of(said: str, road: str) -> dict:
    """A result. An id of another turn keeps its tail from being put together."""
    return {**RESULT, "content": said, **({"tool_call_id": "call99999"} if road == "rendered" else {})}


def test_an_incomplete_stop_list_is_found_and_the_missing_token_named(tokenizer_for: MakeRenderer) -> None:
    plan = audit(make(tokenizer_for, CALL_END, "<end>"))
    assert plan.report.kinds["tool"] == KindReport(
        method="fork", reason=BEHIND, keeps_plain=True, keeps_reasoning=False
    )
    assert plan.method("user") == "short"
    (missing,) = plan.report.missing_stops
    assert missing.token == "<call_end>" and set(missing.kinds) >= {"tool", "parallel_tools", "tool_then_user"}
    assert str(missing.id) in missing.advice() and "--rollout-stop-token-ids" in missing.advice()
    assert "eos_token_id in generation_config.json" in missing.advice()


def test_a_complete_stop_list_extends_and_nothing_is_named(tokenizer_for: MakeRenderer) -> None:
    report = audit(make(tokenizer_for, CALL_END, "<end>", "<call_end>")).report
    assert (report.missing_stops, report.hidden, report.kinds["tool"].method) == ((), ("tools",), "short")


def test_a_token_within_a_turn_is_not_named(tokenizer_for: MakeRenderer) -> None:
    template = CALL_END.replace("(c.function.arguments | tojson)", "(c.function.arguments | tojson) + '<other>'")
    (missing,) = audit(make(tokenizer_for, template, "<end>")).report.missing_stops
    assert missing.token == "<call_end>"


@pytest.mark.parametrize("road", ["assembled", "rendered"])
def test_the_cut_itself_refuses_to_drop_a_result_whatever_it_says(tokenizer_for: MakeRenderer, road: str) -> None:
    encoder = DeltaEncoder(make(tokenizer_for, CALL_END, "<end>"), Everything())
    for said in ODD:
        assert encoder.delta(after(result_of(said, road), USER)) == Fork(BEHIND), said


@pytest.mark.parametrize("road", ["assembled", "rendered"])
def test_with_a_complete_list_no_content_forks(tokenizer_for: MakeRenderer, road: str) -> None:
    renderer = make(tokenizer_for, CALL_END, "<end>", "<call_end>")
    encoder = DeltaEncoder(renderer, Everything())
    for said in ODD:
        delta = encoder.delta(after(result_of(said, road), USER))
        assert isinstance(delta, Delta) and delta.rendered == (road == "rendered")
        assert renderer.decode(delta.ids).startswith(f"<call_end>[{said}]<end>")


@pytest.mark.parametrize(
    "way", ["m.content | tojson", "m.content | trim", "m.content | upper", "m.content | replace('a', 'b')"]
)
def test_content_that_a_template_rewrites_does_not_fork(tokenizer_for: MakeRenderer, way: str) -> None:
    renderer = make(tokenizer_for, CALL_END.replace("'[' + m.content", f"'[' + ({way})"), "<end>", "<call_end>")
    encoder = DeltaEncoder(renderer, audit(renderer))
    for said in ODD:
        assert isinstance(encoder.delta(after({**RESULT, "content": said})), Delta), said


def test_a_message_that_is_moved_to_the_front_of_the_prompt_forks_unless_it_is_shown_as_a_users(
    tokenizer_for: MakeRenderer,
) -> None:
    template = (
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
        "{% for m in messages if m.role != 'system' %}{{ '<' + m.role + '>' + m.content + '<end>' }}{% endfor %}"
    )
    renderer = make(tokenizer_for, template, "<end>")
    system = {"role": "system", "content": "be brief"}
    plan = audit(renderer)
    assert {kind for kind in KINDS if plan.find(kind).reason == ELSEWHERE} == {
        "system",
        "system_then_user",
        "tool_then_system",
    }
    assert plan.systems == Systems(folds=False, later="as_user") and plan.report.forks() == {}
    assert DeltaEncoder(renderer, Everything()).delta(after(system, USER, calls=())) == Fork(ELSEWHERE)


def test_a_gap_is_proven_once_though_every_call_has_an_id_of_its_own(tokenizer_for: MakeRenderer) -> None:
    template = CALL_END.replace("(c.function.arguments | tojson)", "(c.function.arguments | tojson) + c.id")
    renderer = make(tokenizer_for, template, "<end>", "<call_end>")
    seams, renders = Seams(renderer), []
    render = renderer.render
    renderer.render = lambda *a, **k: renders.append(1) or render(*a, **k)
    for number in range(5):
        call = replace(CALL, id=f"call0000{number}")
        c = after({**RESULT, "content": f"{number} <end>", "tool_call_id": call.id}, calls=(call,))
        tail = tail_of(renderer, c, "short")
        assert isinstance(tail, Tail) and call.id in tail.gap
        assert seams.fork(c, tail, "short") is None
    assert len(renders) == 5 + 1, "five tails and one proof"


def test_a_gap_in_which_words_of_a_result_stand_is_refused_even_where_the_same_gap_was_proven_for_other_roles(
    tokenizer_for: MakeRenderer,
) -> None:
    renderer = make(tokenizer_for, CALL_END, "<end>")
    seams, c = Seams(renderer), after(USER, calls=())
    assert seams.fork(c, tail_of(renderer, c, "short"), "short") is None
    c = after({**RESULT, "content": ""})
    assert seams.fork(c, tail_of(renderer, c, "short"), "short") == Fork(BEHIND)


@pytest.mark.parametrize(
    ("left_out", "hidden"),
    [
        ("m.role == 'tool'", ("tools", "tool_results")),
        ("m.role == 'system'", ("tools", "system")),
        ("m.role == 'system' and not loop.first", ("tools",)),
        ("'halyard' in m.content", ("tools", "later_system")),
        ("false", ("tools",)),
    ],
)
def test_what_a_template_never_writes_is_named(
    tokenizer_for: MakeRenderer, left_out: str, hidden: tuple[str, ...]
) -> None:
    body = CALL_END.replace("{%- if m.role == 'tool'", f"{{%- if {left_out} %}}{{%- elif m.role == 'tool'")
    report = audit(make(tokenizer_for, body, "<end>", "<call_end>")).report
    assert report.hidden == hidden
    (warning,) = report.warnings()
    assert "does not show the model the list of tools" in warning and "chat_template_path" in warning


def test_calls_that_are_not_written_are_named(tokenizer_for: MakeRenderer) -> None:
    template = CALL_END.replace("m.tool_calls or []", "[]")
    assert "tool_calls" in audit(make(tokenizer_for, template, "<end>", "<call_end>")).report.hidden


def test_a_tool_list_and_images_that_are_shown_are_not_named(tokenizer_for: MakeRenderer) -> None:
    template = (
        "{{ (tools or []) | tojson }}{% for m in messages %}{{ '<' + m.role + '>' }}"
        "{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}{{ p.text if p.type == 'text' else '<other>' }}{% endfor %}{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{{ '<end>' }}{% endfor %}"
    )
    report = audit(make(tokenizer_for, template, "<end>")).report
    assert (report.hidden, report.images) == ((), True)
    assert not audit(make(tokenizer_for, CALL_END, "<end>")).report.images


def test_what_a_template_refuses_is_not_hidden(renderers: Callable[..., Renderer]) -> None:
    assert audit(renderers("strict")).report.hidden == ("tools", "tool_calls")


def test_a_report_with_a_missing_stop_is_json(tokenizer_for: MakeRenderer) -> None:
    written = json.loads(json.dumps(audit(make(tokenizer_for, CALL_END, "<end>")).report.as_dict()))
    (missing,) = written["missing_stops"]
    assert MissingStop(**{**missing, "kinds": tuple(missing["kinds"])}).token == "<call_end>"

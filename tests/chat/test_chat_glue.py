"""Assembled tails equal those that the template renders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_agl.chat.template.glue import Glue
from slime_agl.chat.template.messages import Reply, ToolCall
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.shape import PROBE_TOOLS
from slime_agl.chat.template.tail import Continuation, Tail, TakesLong, tail_of
from slime_agl.chat.template.tools import Tools


def roles(body: str, ending: str = "") -> str:
    """A template that writes `body` in each message."""
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
        + body
        + "{{ '<|im_end|>\\n' }}{% endfor %}"
        + ending
    )


SPECIAL = ["<|im_end|>", "<|im_start|>"]
USER = {"role": "user", "content": "hi"}
CALL, OTHER = ToolCall("call00001", "search", "{}"), ToolCall("call00002", "read", "{}")


def after(*said: str, role: str = "user", calls: tuple[ToolCall, ...] = (), **more: object) -> Continuation:
    context = more.pop("context", [USER])
    new = [{"role": role, "content": text} for text in said]
    for message, call in zip(new, calls, strict=False):
        message["tool_call_id"] = call.id
    return Continuation(
        context=context,
        reply=Reply("", "", calls),
        new_messages=new,
        tools=more.get("tools"),
        kwargs=more.get("kwargs", {}),
        last_id=None,
    )


def assert_as_rendered(renderer: Renderer, glue: Glue, c: Continuation) -> None:
    ids, tail = glue.ids(c), tail_of(renderer, c, "short")
    assert isinstance(tail, Tail) and ids == tail.ids


texts = st.text(max_size=12) | st.sampled_from(["<|im_end|>", "</tool_response>", "<think>\nx\n</think>", "\n", " a "])
GLUES: dict[str, tuple[Renderer, Glue]] = {}


@pytest.mark.parametrize("name", ["chatml", "plain", "parts"])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_said_the_tail_is_the_rendered_one(
    name: str, renderers: Callable[..., Renderer], data: st.DataObject
) -> None:
    if name not in GLUES:
        renderer = renderers(name)
        GLUES[name] = (renderer, Glue(renderer))
    calls = data.draw(st.sampled_from([(), (CALL,), (CALL, OTHER)]))
    said = [data.draw(texts) for _ in calls or (1,)]
    system = {"role": "system", "content": data.draw(st.sampled_from(["be brief", "be\nkind"]))}
    c = after(
        *said,
        role="tool" if calls else "user",
        calls=calls,
        tools=data.draw(st.sampled_from([None, PROBE_TOOLS])),
        context=data.draw(st.sampled_from([[USER], [system, USER]])),
    )
    assert_as_rendered(*GLUES[name], c)


def test_what_a_template_trims_is_trimmed(tokenizer_for: Callable[[list[str], str], Renderer]) -> None:
    renderer = tokenizer_for(SPECIAL, roles("{{ m.content | trim }}"))
    glue = Glue(renderer)
    for said in ("a", " a\n", "", "\n"):
        assert_as_rendered(renderer, glue, after(said))


@pytest.mark.parametrize(
    "body",
    [
        "{% if m.content == 'secret' %}{{ 'hidden' }}{% else %}{{ m.content }}{% endif %}",
        "{% if m.content.startswith('[img]') %}{{ '<image>' }}{% else %}{{ m.content }}{% endif %}",
        "{{ m.content | replace('a', 'b') }}",
        "{{ m.content | tojson }}",
        "{{ m.content | upper }}",
        "{{ m.content }}{{ m.content }}",
        "{{ m.content[:40] }}",
        "{% if m.content is string and '</think>' in m.content %}{{ 'x' }}{% else %}{{ m.content }}{% endif %}",
    ],
)
def test_a_template_that_looks_at_what_is_said_is_run(
    tokenizer_for: Callable[[list[str], str], Renderer], body: str
) -> None:
    assert Glue(tokenizer_for(SPECIAL, roles(body))).ids(after("a word")) is None


@pytest.mark.parametrize("field", ["name", "tool_call_id"])
def test_a_template_that_writes_names_or_ids_of_calls_is_run(
    tokenizer_for: Callable[[list[str], str], Renderer], field: str
) -> None:
    body = "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    renderer = tokenizer_for(SPECIAL, roles(body + "{{ m." + field + " or '' }}"))
    assert Glue(renderer).ids(after("found", role="tool", calls=(CALL,))) is None


@pytest.mark.parametrize(
    "strange",
    [{"tool_call_id": "call99999"}, {"tool_call_id": "call00001", "reasoning_content": "x"}, {"content": []}],
)
def test_messages_of_a_sort_that_was_not_tried_are_rendered(chatml: Renderer, strange: dict) -> None:
    c = after("found", role="tool", calls=(CALL,))
    assert Glue(chatml).ids(c) is not None
    c.new_messages[0].update(strange)
    assert Glue(chatml).ids(c) is None


def test_template_variables_tools_and_new_stop_tokens_have_tails_of_their_own(
    tokenizer_for: Callable[[list[str], str], Renderer],
) -> None:
    ending = "{% if brief %}{{ 'brief' }}{% endif %}{% if tools %}{{ tools | length }}{% endif %}"
    renderer = tokenizer_for(SPECIAL, roles("{{ m.content }}", ending))
    glue = Glue(renderer)
    many = Tools(PROBE_TOOLS * 3)
    for c in (after("a"), after("a", kwargs={"brief": True}), after("a", tools=PROBE_TOOLS), after("a", tools=many)):
        assert_as_rendered(renderer, glue, c)
    renderer.add_stop_id(renderer.encode("\n")[0])
    assert_as_rendered(renderer, glue, after("a"))


def test_an_agent_that_invents_variables_does_not_cost_trials_for_ever(chatml: Renderer) -> None:
    glue = Glue(chatml)
    renders: list[int] = []
    render = chatml.render
    for number in range(140):
        c = after("a", kwargs={"variable": number})
        count = len(renders)
        chatml.render = lambda *a, **k: renders.append(1) or render(*a, **k)
        glue.ids(c)
        del chatml.render
        cost = len(renders) - count
    assert cost == 0


def test_a_shape_is_not_proven_in_a_hurry(chatml: Renderer) -> None:
    glue = Glue(chatml)
    with pytest.raises(TakesLong):
        glue.ids(after("a"), quick=True)
    proven = glue.ids(after("a"))
    assert proven and glue.ids(after("a"), quick=True) == proven
    with pytest.raises(TakesLong):
        glue.ids(after("a", tools=Tools(PROBE_TOOLS)), quick=True)

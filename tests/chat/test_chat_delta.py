from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slime_agl.chat.proof.audit import TemplateAudit, audit
from slime_agl.chat.proof.probes import KINDS
from slime_agl.chat.template.delta import Delta, DeltaEncoder, kind_of
from slime_agl.chat.template.messages import Reply, ToolCall, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.tail import Continuation, Fork, TakesLong
from slime_agl.chat.template.tools import Tools
from slime_agl.errors import ConfigError

USER = {"role": "user", "content": "hi"}
CALL = ToolCall("call_1", "search", '{"query": "tides"}')
RESULT = {"role": "tool", "content": "high at six", "tool_call_id": "call_1"}
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}]


def after(reply: Reply, *new: dict, last_id: int | None = None, context: tuple[dict, ...] = (USER,)) -> Continuation:
    return Continuation(
        context=list(context), reply=reply, new_messages=list(new), tools=None, kwargs={}, last_id=last_id
    )


def text_of(renderer: Renderer, delta: Delta | Fork) -> str:
    assert isinstance(delta, Delta), delta
    return renderer.decode(delta.ids)


@pytest.fixture(scope="module")
def encoder(chatml: Renderer) -> DeltaEncoder:
    return DeltaEncoder(chatml, audit(chatml))


@pytest.fixture(scope="module")
def opener(renderers: Callable[..., Renderer]) -> Renderer:
    return renderers("role_opener")


def stop(renderer: Renderer, token: str) -> int:
    (token_id,) = renderer.encode(token)
    return token_id


def test_a_sampled_stop_token_is_not_written_again(chatml: Renderer, encoder: DeltaEncoder) -> None:
    c = after(Reply("yes", "", ()), USER, last_id=stop(chatml, "<|im_end|>"))
    assert text_of(chatml, encoder.delta(c)) == "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("last", [None, "s"])
def test_a_turn_that_was_cut_is_closed_as_glue(chatml: Renderer, encoder: DeltaEncoder, last: str | None) -> None:
    c = after(Reply("ye", "", ()), USER, last_id=None if last is None else stop(chatml, last))
    assert text_of(chatml, encoder.delta(c)).startswith("<|im_end|>\n<|im_start|>user")


def test_another_stop_token_closes_a_turn_as_well(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers("chatml")
    end_of_text = stop(renderer, "<|endoftext|>")
    renderer.add_stop_id(end_of_text)
    delta = DeltaEncoder(renderer, audit(renderer)).delta(after(Reply("yes", "", ()), USER, last_id=end_of_text))
    assert text_of(renderer, delta).startswith("\n<|im_start|>user")


def test_a_sampled_opener_is_not_written_again(opener: Renderer) -> None:
    c = after(Reply("", "", (CALL,)), RESULT, last_id=stop(opener, "<|observation|>"))
    assert text_of(opener, DeltaEncoder(opener, audit(opener)).delta(c)) == "\nhigh at six<|assistant|>"


@pytest.mark.parametrize("last", ["<|user|>", "<|endoftext|>"])
def test_where_openers_end_turns_another_stop_token_does_not_replace_the_opener(opener: Renderer, last: str) -> None:
    c = after(Reply("", "", (CALL,)), RESULT, last_id=stop(opener, last))
    delta = DeltaEncoder(opener, audit(opener)).delta(c)
    assert text_of(opener, delta) == "<|observation|>\nhigh at six<|assistant|>"


def test_parallel_results_are_one_piece_of_glue(chatml: Renderer, encoder: DeltaEncoder) -> None:
    second = replace(CALL, id="call_2")
    c = after(Reply("", "", (CALL, second)), RESULT, {**RESULT, "tool_call_id": "call_2"})
    assert text_of(chatml, encoder.delta(c)).count("<|im_start|>user") == 1


def test_a_tool_that_returns_stop_tokens_does_not_move_the_marker(chatml: Renderer, encoder: DeltaEncoder) -> None:
    c = after(Reply("", "", (CALL,)), {**RESULT, "content": "a<|im_end|>b"}, last_id=stop(chatml, "<|im_end|>"))
    assert text_of(chatml, encoder.delta(c)).startswith("\n<|im_start|>user\n<tool_response>\na<|im_end|>b\n")


@dataclass
class Counting:
    """A renderer that remembers how many messages each render was given."""

    inner: Renderer
    sizes: list[int]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def render(self, messages: list[dict], *rest: object) -> str:
        self.sizes.append(len(messages))
        return self.inner.render(messages, *rest)


def test_a_short_delta_renders_nothing_of_the_history(chatml: Renderer) -> None:
    counting = Counting(chatml, [])
    system = {"role": "system", "content": "be brief"}
    context = (system, *[USER, reply_message(Reply("yes", "", ()))] * 200, USER)
    encoder, c = DeltaEncoder(counting, audit(chatml)), after(Reply("", "", (CALL,)), RESULT, context=context)
    encoder.delta(c)
    assert set(counting.sizes) == {4}, "system, one letter, stand-in, result"
    counting.sizes.clear()
    encoder.delta(c)
    assert counting.sizes == [], "what was rendered once is put together"


def test_a_template_that_looks_back_is_given_the_real_context(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers("looks_back")
    earlier = (USER, reply_message(Reply("", "", (CALL,))), RESULT)
    encoder = DeltaEncoder(renderer, audit(renderer))
    assert text_of(renderer, encoder.delta(after(Reply("", "", (CALL,)), RESULT))) == (
        "<|im_end|><|im_start|>results\n[high at six]<|im_start|>assistant\n"
    )
    again = encoder.delta(after(Reply("", "", (CALL,)), RESULT, context=earlier))
    assert text_of(renderer, again) == "<|im_end|>[high at six]<|im_start|>assistant\n"


def test_a_template_that_shows_no_calls_still_takes_results(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers("plain")
    delta = DeltaEncoder(renderer, audit(renderer)).delta(after(Reply("", "", (CALL,)), RESULT))
    assert text_of(renderer, delta).startswith("<|im_end|>\n<|im_start|>tool\nhigh at six<|im_end|>")


def test_what_was_not_proven_forks(encoder: DeltaEncoder) -> None:
    assert encoder.delta(after(Reply("yes", "", ()), RESULT)) == Fork("unproven")


def test_a_foreign_assistant_message_forks(encoder: DeltaEncoder) -> None:
    c = after(Reply("yes", "", ()), USER, {"role": "assistant", "content": "no"}, USER)
    assert encoder.delta(c) == Fork("edited_reply")


def test_a_conversation_the_template_refuses_forks(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers("strict")
    c = after(Reply("yes", "", ()), USER, USER)
    assert DeltaEncoder(renderer, audit(renderer)).delta(c) == Fork("template_refused")


def test_lost_or_repeated_sentinels_and_missing_markers_fork(chatml: Renderer) -> None:
    def fork(template: str) -> Delta | Fork:
        renderer = Renderer(chatml._tokenizer, chat_template=template)
        return DeltaEncoder(renderer, audit(chatml)).delta(after(Reply("yes", "", ()), USER))

    assert fork("{{ messages | length }}<|im_end|>") == Fork("sentinel_lost")
    assert fork("{{ messages[1].content * 2 }}<|im_end|>") == Fork("sentinel_repeated")
    assert fork("{{ messages[1].content }}") == Fork("no_marker")


def test_history_template_forks_where_reasoning_would_be_dropped(chatml: Renderer) -> None:
    report = audit(chatml)
    append, template = DeltaEncoder(chatml, report), DeltaEncoder(chatml, report, history="template")
    thoughtful = after(Reply("yes", "because", ()), USER)
    assert isinstance(append.delta(thoughtful), Delta)
    assert template.delta(thoughtful) == Fork("history_rewritten")
    assert isinstance(template.delta(after(Reply("yes", "", ()), USER)), Delta)
    assert isinstance(template.delta(after(Reply("", "because", (CALL,)), RESULT)), Delta)
    earlier = (USER, reply_message(Reply("yes", "because", ())), USER)
    assert template.delta(after(Reply("no", "", ()), USER, context=earlier)) == Fork("history_rewritten")


def test_an_unknown_history_policy_is_refused(chatml: Renderer) -> None:
    with pytest.raises(ConfigError, match="agl.history is 'rewrite'; it must be one of append, template"):
        DeltaEncoder(chatml, audit(chatml), history="rewrite")


@pytest.mark.parametrize(
    ("calls", "roles", "kind"),
    [
        (0, ["user"], "user"),
        (0, ["user", "user"], "user"),
        (0, [], "again"),
        (0, ["tool"], "stray_tool"),
        (1, ["tool"], "tool"),
        (2, ["tool", "tool"], "parallel_tools"),
        (2, ["tool", "tool", "user"], "parallel_tools_then_user"),
        (1, ["user"], "call_then_user"),
        (1, [], "call"),
        (0, ["system", "user"], "system_then_user"),
    ],
)
def test_a_kind_says_what_was_called_and_who_speaks_next(calls: int, roles: list[str], kind: str) -> None:
    assert kind_of(Reply("", "", (CALL,) * calls), [{"role": role} for role in roles]) == kind


words = st.text(max_size=24)
arguments = st.dictionaries(st.sampled_from(["a", "b", "kéy"]), words, max_size=2)


@st.composite
def continuations(draw: st.DrawFn) -> Continuation:
    """A conversation of any length, as an agent would have it, and its next request."""
    count = 0

    def turn(calling: bool) -> tuple[Reply, list[dict]]:
        nonlocal count
        if not calling:
            return Reply("said " + draw(words) + ".", draw(st.sampled_from(["", "why"])), ()), [_user(draw(words))]
        made = []
        for _ in range(draw(st.integers(1, 2))):
            count += 1
            made.append(ToolCall(f"call{count:05d}", "search", _json(draw(arguments))))
        results = [{"role": "tool", "content": draw(words), "tool_call_id": c.id, "name": c.name} for c in made]
        return Reply("", draw(st.sampled_from(["", "why"])), tuple(made)), results

    context = [{"role": "system", "content": draw(words)}] if draw(st.booleans()) else []
    context.append(_user(draw(words)))
    for calling in draw(st.lists(st.booleans(), max_size=3)):
        reply, new = turn(calling)
        context += [reply_message(reply), *new]
    reply, new = turn(draw(st.booleans()))
    if draw(st.booleans()) and reply.tool_calls:
        new.append(_user(draw(words)))
    return Continuation(
        context=context,
        reply=reply,
        new_messages=new,
        tools=draw(st.sampled_from([None, Tools(TOOLS)])),
        kwargs={},
        last_id=None,
    )


def _user(text: str) -> dict:
    return {"role": "user", "content": text}


def _json(value: dict) -> str:
    return json.dumps(value, ensure_ascii=False)


PLANS: dict[str, tuple[Renderer, TemplateAudit]] = {}


def plan_of(name: str, renderers: Callable[..., Renderer]) -> tuple[Renderer, TemplateAudit]:
    if name not in PLANS:
        renderer = renderers(name)
        PLANS[name] = (renderer, audit(renderer))
    return PLANS[name]


def assert_is_tail_of_the_full_render(renderer: Renderer, plan: TemplateAudit, c: Continuation) -> None:
    delta = DeltaEncoder(renderer, plan).delta(c)
    if isinstance(delta, Fork):
        return
    full = renderer.prompt_ids([*c.context, reply_message(c.reply), *c.new_messages], c.tools)
    held = full[: -len(delta.ids)]
    assert held + delta.ids.tolist() == full
    assert delta.ids[0] in renderer.marker_ids, "a turn without a sampled stop token is closed"
    if not plan.rewrites(kind_of(c.reply, c.new_messages), reasoning=True):
        assert len(held) > len(renderer.prompt_ids(c.context, c.tools)), "nothing of the history is in the delta"


@pytest.mark.parametrize("name", ["chatml", "role_opener", "looks_back", "plain", "parts"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(c=continuations())
def test_a_proven_delta_is_the_tail_of_the_full_render(
    name: str, renderers: Callable[..., Renderer], c: Continuation
) -> None:
    renderer, plan = plan_of(name, renderers)
    if kind_of(c.reply, c.new_messages) in KINDS and name in ("chatml", "plain"):
        assert plan.method(kind_of(c.reply, c.new_messages)) == "short"
    assert_is_tail_of_the_full_render(renderer, plan, c)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(c=continuations())
def test_a_proven_delta_is_the_tail_for_qwen3(qwen: Renderer, c: Continuation) -> None:
    PLANS.setdefault("qwen", (qwen, audit(qwen)))
    assert_is_tail_of_the_full_render(*PLANS["qwen"], c)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(c=continuations())
def test_a_proven_delta_is_the_tail_for_smollm2(smollm2: Renderer, c: Continuation) -> None:
    PLANS.setdefault("smollm2", (smollm2, audit(smollm2)))
    assert_is_tail_of_the_full_render(*PLANS["smollm2"], c)


def test_the_real_context_is_not_rendered_in_a_hurry(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers("looks_back")
    c, encoder = after(Reply("", "", (CALL,)), RESULT), DeltaEncoder(renderer, audit(renderer))
    with pytest.raises(TakesLong):
        encoder.delta(c, quick=True)
    assert isinstance(encoder.delta(c), Delta)

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from slime_agl.chat.proof.audit import TemplateAudit, audit
from slime_agl.chat.proof.probes import KINDS
from slime_agl.chat.template.renderer import Renderer

Reports = Callable[[str], TemplateAudit]


@pytest.fixture(scope="module")
def reports(renderers: Callable[..., Renderer]) -> Reports:
    made: dict[str, TemplateAudit] = {}

    def plan(name: str) -> TemplateAudit:
        if name not in made:
            made[name] = audit(renderers(name))
        return made[name]

    return plan


def test_chatml_is_proven_short_for_every_kind(reports: Reports) -> None:
    plan = reports("chatml")
    assert {kind: plan.method(kind) for kind in KINDS} == dict.fromkeys(KINDS, "short")
    assert (plan.report.closes_turns, plan.report.tools, plan.report.parallel_calls, plan.report.reasoning) == (
        True,
        True,
        True,
        True,
    )
    assert plan.report.stop_tokens == ("<|im_end|>",)


def test_reasoning_dropped_at_a_user_turn_is_named_with_its_remedy(reports: Reports) -> None:
    plan = reports("chatml")
    assert plan.rewrites("user", reasoning=True)
    assert not plan.rewrites("user", reasoning=False)
    assert not plan.rewrites("tool", reasoning=True)
    assert plan.report.history_kwargs == {"preserve_thinking": True}


def test_the_remedy_is_taken_when_it_is_set(renderers: Callable[..., Renderer]) -> None:
    plan = audit(renderers("chatml", template_kwargs={"preserve_thinking": True}))
    assert not plan.rewrites("user", reasoning=True)
    assert plan.report.history_kwargs == {}


def test_a_prompt_that_opens_reasoning_is_seen_and_rewritten_by_the_next_prompt(
    renderers: Callable[..., Renderer],
) -> None:
    plan = audit(renderers("chatml", template_kwargs={"think": True}))
    assert plan.report.opens_think
    assert plan.rewrites("user", reasoning=False)


def test_a_role_opener_is_told_from_a_closer(reports: Reports) -> None:
    plan = reports("role_opener")
    assert not plan.closes_turns
    assert [plan.method(kind) for kind in ("user", "tool", "parallel_tools")] == ["short"] * 3
    assert plan.report.kinds["again"].reason == "no_marker", "nothing but an opener ends a turn, and none follows"


def test_a_template_that_looks_back_needs_the_real_context(reports: Reports) -> None:
    plan = reports("looks_back")
    assert (plan.method("user"), plan.method("tool"), plan.report.kinds["tool"].reason) == (
        "short",
        "real",
        "tail_differs",
    )


def test_what_a_strict_template_refuses_forks_with_that_reason(reports: Reports) -> None:
    plan = reports("strict")
    assert (plan.method("user"), plan.method("tool"), plan.report.kinds["tool"].reason) == (
        "short",
        "fork",
        "template_refused",
    )


def test_a_template_without_tools_says_so_and_still_takes_results(reports: Reports) -> None:
    plan = reports("plain")
    assert (plan.report.tools, plan.report.parallel_calls, plan.method("tool")) == (False, False, "short")


def test_a_kind_that_was_not_tried_forks(reports: Reports) -> None:
    assert reports("chatml").method("stray_tool") == "fork"
    assert reports("chatml").rewrites("stray_tool", reasoning=False)


def test_ids_of_nine_letters_are_noticed(chatml: Renderer) -> None:
    picky = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{% if c.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}{{ c.function.arguments }}"
        "{% endfor %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    assert audit(Renderer(chatml._tokenizer, chat_template=picky)).report.nine_letter_ids
    assert not audit(chatml).report.nine_letter_ids


def test_a_report_can_be_written_as_json(reports: Reports) -> None:
    written = json.loads(json.dumps(reports("chatml").report.as_dict()))
    expected = {"mode": "short", "reason": "", "keeps_plain": True, "keeps_reasoning": True, "hides": []}
    assert written["kinds"]["tool"] == expected


def test_qwen3_is_proven_with_its_real_vocabulary_and_template(qwen: Renderer) -> None:
    plan = audit(qwen)
    assert {plan.method(kind) for kind in KINDS} == {"short"}
    assert plan.rewrites("user", reasoning=True)
    assert not plan.rewrites("tool", reasoning=True)


def test_smollm2_is_proven_for_every_kind(smollm2: Renderer) -> None:
    plan = audit(smollm2)
    assert {plan.method(kind) for kind in KINDS} == {"short"}
    assert not plan.report.tools


@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [
        ("qwen2_5", "parallel_tools", "short"),
        ("qwen3_6", "tool", "short"),
        ("deepseekv3", "user", "short"),
        ("deepseekv3", "tool", "real"),
        ("glm4moe", "tool", "short"),
        ("gemma4", "parallel_tools", "short"),
        ("llama3_1", "tool", "short"),
        ("llama3_1", "parallel_tools", "fork"),
        ("gptoss", "tool", "short"),
        ("gptoss", "user", "fork"),
    ],
)
def test_public_templates_get_the_mode_that_is_right_for_them(
    tokenizer_for: Callable[[list[str], str], Renderer],
    trl_template: Callable[[str], str],
    name: str,
    kind: str,
    mode: str,
) -> None:
    special = {
        "deepseekv3": ["<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"],
        "glm4moe": ["<|user|>", "<|observation|>", "<|endoftext|>", "<|assistant|>"],
        "gemma4": ["<turn|>", "<|tool_response>", "<bos>"],
        "llama3_1": ["<|eot_id|>", "<|begin_of_text|>"],
        "gptoss": ["<|return|>", "<|call|>", "<|end|>"],
    }.get(name, ["<|im_end|>", "<|im_start|>"])
    assert audit(tokenizer_for(special, trl_template(name))).method(kind) == mode


def test_other_template_variables_are_tried_on_their_own(chatml: Renderer) -> None:
    plan = audit(chatml)
    assert plan.rewrites("user", reasoning=True)
    assert not plan.rewrites("user", {"preserve_thinking": True}, reasoning=True)
    assert plan.rewrites("user", {"think": True}, reasoning=False), "an open <think> is not in the history"


def test_variables_under_which_the_template_refuses_fork_and_the_others_do_not(chatml: Renderer) -> None:
    template = "{% if strict %}{{ raise_exception('no') }}{% endif %}" + chatml._tokenizer.chat_template
    plan = audit(Renderer(chatml._tokenizer, chat_template=template))
    assert [plan.method("tool", {"strict": strict}) for strict in (False, True)] == ["short", "fork"]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("user_then_system", "short"),
        ("tool_then_system_then_user", "short"),
        ("call_then_user_then_prefill", "short"),
        ("prefill", "short"),
        ("stray_tool", "fork"),
        ("user_then_tool", "fork"),
        ("user_then_system_then_user_then_system_then_user", "fork"),
    ],
)
def test_rare_kinds_are_tried_when_they_occur(reports: Reports, kind: str, mode: str) -> None:
    assert reports("chatml").method(kind) == mode


def test_a_kind_is_tried_once(chatml: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = audit(chatml)
    tried = [plan.find("user_then_system", {"b": 1, "a": [2]})]
    monkeypatch.setattr(chatml, "render", None)
    assert [plan.find("user_then_system", {"a": [2], "b": 1})] == tried


def test_a_stop_id_that_is_learned_makes_findings_void(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers("chatml")
    renderer._set_stop_ids(frozenset())
    plan = audit(renderer)
    assert (plan.method("user"), plan.closes_turns) == ("fork", False)
    renderer.add_stop_id(renderer.encode("<|im_end|>")[0])
    assert (plan.method("user"), plan.closes_turns) == ("short", True)

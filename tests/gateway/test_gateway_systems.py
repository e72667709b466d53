"""Later system messages on templates that take one at the beginning: shown, counted, and never a fork."""

from __future__ import annotations

from typing import Any

import pytest

from slime_agl.testing.tokenizer import CHAT_TEMPLATE

LEADING = "m.role == 'system' and not loop.first"


def refusing(what: str) -> str:
    """The tiny tokenizer's template, which refuses messages `m` for which a Jinja expression is true."""
    check = f"{{%- if {what} %}}{{{{ raise_exception('not here') }}}}{{% endif -%}}"
    return f"{{%- for m in messages -%}}{check}{{%- endfor -%}}{CHAT_TEMPLATE}"


ONE_LEADING = refusing(LEADING)
ALTERNATING = refusing(f"({LEADING}) or m.role == 'user' and loop.index0 and loop.previtem.role in ('user', 'tool')")
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    }
]


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def talk(client: Any, messages: list[Any], *news: list[Any]) -> None:
    """Ask, then answer each call with a result and each reply with the next news; echo what came back."""
    for new in (messages, *news):
        if new is not messages:
            messages = [*messages, *new]
        answer = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages = [*messages, message.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in message.tool_calls or ()]


@pytest.mark.parametrize("template", [ONE_LEADING, ALTERNATING], ids=["one_leading", "alternating"])
async def test_later_system_messages_extend_the_segment_and_are_counted(make_bench, script, fake_sglang, template):
    script([("add", {"a": 1})], "Three.", "Fine.", "Well.")
    bench = make_bench(template=template)
    start = [system("Rule one."), {"role": "developer", "content": "Rule two."}, user("Add."), system("Rule three.")]
    await talk(
        await bench.open(), start, [system("Rule four.")], [system("Rule five."), user("Go on.")], [system("Rule six.")]
    )
    proof = await bench.prove(fake_sglang)
    assert proof.one_segment(4)
    assert proof.left.counters["system_messages_reshaped"] == 5, "one stays as sent"
    shown = fake_sglang.tokenizer.decode(fake_sglang.requests[-1].input_ids)
    order = ["Rule one.", "Rule two.", "Add.", "Rule three.", "Rule four.", "Rule five.", "Go on.", "Rule six."]
    assert sorted(order, key=shown.index) == order and all(shown.count(text) == 1 for text in order)
    assert shown.count("<|im_start|>system\n") == 1, "the rules at the beginning, with the tools"
    first = fake_sglang.tokenizer.decode(fake_sglang.requests[0].input_ids)
    assert shown.startswith(first), "tokens already shown never change"


async def test_where_the_template_takes_them_nothing_changes_and_nothing_is_counted(bench, script, fake_sglang):
    script("Yes.", "Still.")
    await talk(await bench.open(), [system("One."), user("Hi."), system("Two.")], [system("Three.")])
    proof = await bench.prove(fake_sglang)
    assert proof.one_segment(2) and proof.left.counters.keys() <= {"held_tokens", "reused_tokens"}
    assert fake_sglang.tokenizer.decode(fake_sglang.requests[-1].input_ids).count("<|im_start|>system\n") == 3


async def test_a_fork_shows_a_whole_history_with_later_system_messages(make_bench, script, fake_sglang):
    script("Yes.", "Still.", "Again.")
    bench = make_bench(template=ONE_LEADING)
    client = await bench.open()
    start = [system("One."), user("Hi."), system("Two.")]
    await talk(client, start, [system("Three.")])
    edited = [*start, {"role": "assistant", "content": "No."}, system("Three.")]
    await client.chat.completions.create(model="m", messages=edited, tools=TOOLS)
    proof = await bench.prove(fake_sglang)
    assert (proof.segments, proof.forks) == (2, ["history_edited"])
    forked = fake_sglang.tokenizer.decode(fake_sglang.requests[-1].input_ids)
    whole = fake_sglang.tokenizer.decode(fake_sglang.requests[1].input_ids)
    assert forked == whole.replace("Yes.", "No.")


@pytest.mark.parametrize("path", ["messages", "responses"])
async def test_other_protocols_later_system_messages_extend_too(make_bench, script, fake_sglang, path):
    script("Yes.", "Still.")
    bench = make_bench(template=ONE_LEADING)
    client = await bench.open()
    later = {"role": "system" if path == "messages" else "developer", "content": "Rule two."}
    said: list[Any] = [user("Hi."), later]
    for _ in range(2):
        body = {"messages": said, "max_tokens": 99, "system": "Rule one."}
        if path == "responses":
            body = {"input": said, "instructions": "Rule one."}
        answer: Any = await client.post(f"/{path}", body={"model": "m", **body}, cast_to=object)
        said += [{"role": "assistant", "content": answer["content"]}] if path == "messages" else answer["output"]
        said += [{**later, "content": "Rule three."}]
    assert (await bench.prove(fake_sglang)).one_segment(2)

"""What clients send besides the conversation: fields that change no token, hosted and custom tools, namespaces."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import openai
import pytest

from slime_agl.gateway.protocols import fields
from slime_agl.gateway.protocols.anthropic.dialect import FIELDS as MESSAGES
from slime_agl.gateway.protocols.chat import FIELDS as CHAT
from slime_agl.gateway.protocols.completions import FIELDS as COMPLETIONS
from slime_agl.gateway.protocols.responses.dialect import FIELDS as RESPONSES
from slime_agl.gateway.protocols.responses.tools import shown_name
from tests.gateway.test_clients_openai import ADD

HELP: dict[str, Any] = {
    "type": "function",
    "name": "close",
    "description": "Close a helper.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"helper": {"type": "string"}}, "required": ["helper"]},
}
SPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "helpers_v1",
    "description": "Helpers at work.",
    "tools": [HELP, {**HELP, "name": "open", "description": "Open a helper."}],
}
SAID: list[dict[str, Any]] = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Work here."}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Ask a helper."}]},
]
# A request as a coding agent sends it: its own functions, a namespace, a hosted tool, and facts about itself.
CODING: dict[str, Any] = {
    "model": "m",
    "tools": [
        {"type": "function", "strict": False, **ADD},
        SPACE,
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "one-thread",
    "client_metadata": {"x-turn": '{"turn": 1}'},
}


async def ask(client: openai.AsyncOpenAI, items: list[Any], stream: bool = False, **more: Any) -> list[dict[str, Any]]:
    """Send a Responses request as plain JSON; return the output items, from the events if streamed."""
    body = {**CODING, "input": items, "stream": stream, **more}
    answer = await client.post("/responses", body=body, cast_to=object if not stream else str)
    if not stream:
        return answer["output"]
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


@pytest.mark.parametrize("stream", (False, True))
async def test_functions_of_a_namespace_are_called_by_both_names_in_one_segment(bench, script, fake_sglang, stream):
    script([("helpers_v1__close", {"helper": "ann"})], [("add", {"a": 1, "b": 2})], "Done.")
    client = await bench.open()
    items = list(SAID)
    called = await ask(client, items, stream)
    (call,) = called
    assert (call["namespace"], call["name"], call["arguments"]) == ("helpers_v1", "close", '{"helper": "ann"}')
    items += [*called, {"type": "function_call_output", "call_id": call["call_id"], "output": "closed"}]
    (plain,) = called = await ask(client, items, stream)
    assert plain["name"] == "add" and "namespace" not in plain
    items += [*called, {"type": "function_call_output", "call_id": plain["call_id"], "output": "3"}]
    await ask(client, items, stream)
    proof = await bench.prove(fake_sglang)
    assert proof.one_segment(3)
    shown = fake_sglang.tokenizer.decode(list(proof.left.ledger.prompt_ids(0)))
    assert '"helpers_v1__close"' in shown and '"helpers_v1__open"' in shown and "web_search" not in shown
    assert shown.count("Helpers at work.") == 1, "what a namespace is for is told once"
    counted = {name: count for name, count in proof.left.counters.items() if "/" in name}
    assert counted == {
        "hosted_tools/web_search": 3,
        **{f"ignored_fields/{name}": 3 for name in ("client_metadata", "prompt_cache_key")},
    }


async def test_a_stored_call_of_a_namespace_is_found_again(bench, script, fake_sglang):
    script([("helpers_v1__open", {"helper": "bo"})], "Open.")
    client = await bench.open()
    first = await client.post("/responses", body={**CODING, "store": True, "input": SAID}, cast_to=object)
    (call,) = first["output"]
    told = [{"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}]
    await ask(client, told, previous_response_id=first["id"])
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_a_function_of_a_namespace_can_be_forced(bench, script, fake_sglang):
    script("", "")
    client = await bench.open()
    choice = {"type": "function", "namespace": "helpers_v1", "name": "open"}
    await ask(client, SAID, tool_choice=choice)
    shown = fake_sglang.tokenizer.decode(fake_sglang.requests[0].input_ids)
    assert shown.rstrip().endswith("helpers_v1__open") or "helpers_v1__open" in shown[-80:]


async def test_two_functions_of_one_shown_name_are_refused(bench, fake_sglang):
    client = await bench.open()
    twice = [SPACE, {**HELP, "name": "helpers_v1__close"}]
    with pytest.raises(openai.BadRequestError, match="helpers_v1__close"):
        await ask(client, SAID, tools=twice)
    assert fake_sglang.requests == []


PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" LF'},
}


@pytest.mark.parametrize("stream", (False, True))
@pytest.mark.parametrize(
    "arguments, sent",
    [
        ({"input": '*** Begin Patch\n{"a": 1}'}, '*** Begin Patch\n{"a": 1}'),
        ({"input": '{"input": "x"}'}, '{"input": "x"}'),
        ({"patch": "-a"}, '{"patch": "-a"}'),
        ({"input": 3}, '{"input": 3}'),
        ({"input": "a", "more": "b"}, '{"input": "a", "more": "b"}'),
    ],
    ids=["text", "text that looks like arguments", "another argument", "a number", "an argument too many"],
)
async def test_a_custom_tool_is_called_with_a_text_in_one_segment(bench, script, fake_sglang, stream, arguments, sent):
    script([("apply_patch", arguments)], [("edit__apply_patch", arguments)], "Done.")
    client = await bench.open()
    space = {"type": "namespace", "name": "edit", "description": "Edits.", "tools": [PATCH]}
    items, tools = list(SAID), [{"type": "function", **ADD}, PATCH, space]
    for namespace in (None, "edit"):
        (call,) = called = await ask(client, items, stream, tools=tools)
        assert (call["type"], call["name"], call.get("namespace")) == ("custom_tool_call", "apply_patch", namespace)
        assert call["input"] == sent and "arguments" not in call
        items += [*called, {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "patched"}]
    await ask(client, items, stream, tools=tools)
    proof = await bench.prove(fake_sglang)
    assert proof.one_segment(3)
    shown = fake_sglang.tokenizer.decode(list(proof.left.ledger.prompt_ids(0)))
    assert "*** Begin Patch" in shown and "lark" in shown and "edit__apply_patch" in shown
    assert proof.left.counters["ignored_fields/tools.format"] == 6


@pytest.mark.parametrize("stream", (False, True))
async def test_a_custom_tool_of_chat_is_called_with_a_text_in_one_segment(bench, script, fake_sglang, stream):
    script([("apply_patch", {"input": "-a\n+b"}), ("add", {"a": 1, "b": 2})], "Done.")
    client = await bench.open()
    grammar = {key: PATCH["format"][key] for key in ("syntax", "definition")}
    custom = {"name": "apply_patch", "description": "Change.", "format": {"type": "grammar", "grammar": grammar}}
    body: dict[str, Any] = {
        "model": "m",
        "tools": [{"type": "custom", "custom": custom}, {"type": "function", "function": ADD}],
        "messages": [{"role": "user", "content": "Patch it."}],
        "stream": stream,
    }
    answer = await client.post("/chat/completions", body=body, cast_to=str if stream else object)
    if stream:
        chunks = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: {")]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        for call in calls:
            del call["index"]
    else:
        calls = answer["choices"][0]["message"]["tool_calls"]
    assert [call["type"] for call in calls] == ["custom", "function"]
    assert calls[0]["custom"] == {"name": "apply_patch", "input": "-a\n+b"}
    body["messages"] += [{"role": "assistant", "content": None, "tool_calls": calls}]
    body["messages"] += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
    await client.post("/chat/completions", body=body, cast_to=str if stream else object)
    assert (await bench.prove(fake_sglang)).one_segment(2)


@pytest.mark.parametrize("path", ("responses", "chat/completions"))
async def test_a_custom_tool_can_be_forced(bench, script, fake_sglang, path):
    script("")
    client = await bench.open()
    if path == "responses":
        await ask(client, SAID, tools=[PATCH], tool_choice={"type": "custom", "name": "apply_patch"})
    else:
        named = {"type": "custom", "custom": {"name": "apply_patch"}}
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [named], "tool_choice": named}
        await client.post("/chat/completions", body=body, cast_to=object)
    assert "apply_patch" in fake_sglang.tokenizer.decode(fake_sglang.requests[0].input_ids)[-80:]


def test_a_namespace_that_ends_in_the_separator_is_not_given_another():
    assert shown_name("mcp__files__", "read") == "mcp__files__read"
    assert shown_name("files", "read") == "files__read"
    assert shown_name(None, "read") == shown_name("", "read") == "read"


@pytest.mark.parametrize(
    "path, body",
    [
        ("chat/completions", {"tools": [{"type": "web_search"}, {"type": "function", "function": ADD}]}),
        (
            "messages",
            {"max_tokens": 9, "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]},
        ),
        ("responses", {"input": "x", "messages": None, "tools": [{"type": "mcp", "server_label": "s"}]}),
    ],
)
async def test_hosted_tools_that_nobody_demands_are_left_out_and_counted(bench, script, fake_sglang, path, body):
    script("ok")
    client = await bench.open()
    await client.post(
        f"/{path}", body={"model": "m", "messages": [{"role": "user", "content": "x"}], **body}, cast_to=object
    )
    left = await bench.seal()
    assert sum(count for name, count in left.counters.items() if name.startswith("hosted_tools/")) == 1
    shown = fake_sglang.tokenizer.decode(fake_sglang.requests[0].input_ids)
    assert ("add" in shown) == (path == "chat/completions") and "search" not in shown


async def test_a_hosted_tool_that_is_demanded_is_refused(bench, fake_sglang):
    client = await bench.open()
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        "tool_choice": {"type": "tool", "name": "web_search"},
    }
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        await client.post("/messages", body=body, cast_to=object)
    assert fake_sglang.requests == []


async def test_a_request_without_such_fields_counts_nothing(bench, script):
    script("ok")
    client = await bench.open()
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert (await bench.seal()).counters == {}


async def test_metrics_show_what_was_ignored(bench, script):
    script("ok")
    client = await bench.open()
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], user="u")
    await bench.seal()
    async with aiohttp.ClientSession() as http, http.get(f"{bench.gateway.url}/metrics") as answer:
        assert 'slime_agl_gateway_ignored_fields_total{name="user"} 1' in (await answer.text()).splitlines()


@pytest.mark.parametrize("table", (CHAT, COMPLETIONS, MESSAGES, RESPONSES))
def test_each_field_is_on_one_list_and_each_ignored_one_has_a_reason(table):
    lists = [set(table.honoured), set(table.ignored), set(table.fixed), set(table.refused)]
    assert sum(map(len, lists)) == len(set().union(*lists))
    assert all(len(reason.split()) > 3 for reason in table.ignored.values())
    noted: list[str] = []
    given = table.check(dict.fromkeys(table.ignored, "x"), noted.append)
    assert sorted(noted) == sorted(fields.IGNORED + name for name in table.ignored) and len(given) == len(noted)

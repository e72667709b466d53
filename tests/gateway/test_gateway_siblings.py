"""Answers of equal text: an agent that continues one of them continues that one's tokens."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

ASK: list[Any] = [{"role": "user", "content": "a number?"}]
MORE: list[Any] = [{"role": "user", "content": "and?"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


def spellings(fake: Any, text: str) -> list[list[int]]:
    """Sequences of ids that all say the text: it is cut in two anywhere, and the parts are encoded apart."""

    def encode(part: str) -> list[int]:
        return fake.tokenizer.encode(part, add_special_tokens=False)

    found = {tuple(encode(text[:cut]) + encode(text[cut:])) for cut in range(len(text))}
    same = [list(ids) for ids in sorted(found) if fake.tokenizer.decode(list(ids)) == text]
    return [ids for ids in same if ids[:1] == encode(text)[:1]]


@pytest.fixture
def equal(fake_sglang: Any) -> Any:
    """Script three answers of equal text but different tokens, with the given beginnings, then endless "done"."""

    def script(text: str = "the one and the other", heads: tuple[str, ...] = ("", "", "")) -> None:
        ways = spellings(fake_sglang, text)
        ids = [
            [*fake_sglang.tokenizer.encode(head, add_special_tokens=False), *way, fake_sglang.tokenizer.eos_token_id]
            for head, way in zip(heads, ways, strict=False)
        ]
        assert len({tuple(found) for found in ids}) == len(heads)
        for found in ids:
            fake_sglang.say(ids=found)
        fake_sglang.answer_with(lambda request: "done")

    return script


async def post(bench: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {bench.keys['at-1']}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{bench.url()}/{path}", json={"model": "m"} | body) as response,
    ):
        assert response.status == 200, await response.text()
        return await response.json()


async def parents(bench: Any) -> list[int | None]:
    return [turn.parent for turn in (await bench.seal()).ledger.turns[3:]]


async def test_choices_that_cannot_be_told_apart_are_continued_in_their_order(bench, equal):
    equal()
    await bench.open()
    first = await post(bench, "chat/completions", {"messages": ASK, "n": 3})
    for choice in first["choices"]:
        await post(bench, "chat/completions", {"messages": [*ASK, choice["message"], *MORE]})
    assert await parents(bench) == [0, 1, 2]


async def test_the_one_choice_that_an_agent_takes_is_the_first(bench, equal, fake_sglang):
    equal()
    await bench.open()
    first = await post(bench, "chat/completions", {"messages": ASK, "n": 3})
    story = [*ASK, first["choices"][0]["message"], *MORE]
    second = await post(bench, "chat/completions", {"messages": story})
    story += [second["choices"][0]["message"], *MORE]
    await post(bench, "chat/completions", {"messages": story})
    assert await parents(bench) == [0, 3]


@pytest.mark.parametrize("taken", [2, 1, 0])
@pytest.mark.parametrize("field", ["reasoning_content", "content"])
async def test_reasoning_that_is_handed_back_tells_choices_apart(bench, equal, taken, field):
    equal(heads=("<think>one</think>", "<think>two</think>", "<think>three</think>"))
    await bench.open()
    first = await post(bench, "chat/completions", {"messages": ASK, "n": 3})
    message = first["choices"][taken]["message"]
    assert message["reasoning_content"] == ("one", "two", "three")[taken]
    if field == "content":
        message = {
            "role": "assistant",
            "content": f"<think>\n{message['reasoning_content']}\n</think>\n\nthe one and the other",
        }
    await post(bench, "chat/completions", {"messages": [*ASK, message, *MORE]})
    assert await parents(bench) == [taken]


@pytest.mark.parametrize("taken", [2, 1, 0])
async def test_ids_of_calls_tell_choices_apart(bench, equal, taken):
    equal(CALL)
    await bench.open()
    first = await post(bench, "chat/completions", {"messages": ASK, "n": 3, "tools": TOOLS})
    message = first["choices"][taken]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "0"}
    await post(bench, "chat/completions", {"messages": [*ASK, message, result], "tools": TOOLS})
    assert await parents(bench) == [taken]


@pytest.mark.parametrize("taken", [2, 1, 0])
@pytest.mark.parametrize("store", [True, False])
async def test_the_ids_of_responses_tell_them_apart(bench, equal, taken, store):
    equal()
    await bench.open()
    asked = [{"role": "user", "content": "a number?"}]
    found = [await post(bench, "responses", {"input": asked, "store": store}) for _ in range(3)]
    told = {"previous_response_id": found[taken]["id"], "input": MORE}
    await post(bench, "responses", told if store else {"input": [*asked, *found[taken]["output"], *MORE]})
    assert await parents(bench) == [taken]


@pytest.mark.parametrize("taken", [2, 1, 0])
async def test_the_signature_of_a_thinking_block_tells_messages_apart(bench, equal, taken):
    equal(heads=("<think>so</think>",) * 3)
    await bench.open()
    body = {"messages": ASK, "max_tokens": 99, "thinking": {"type": "enabled", "budget_tokens": 9}}
    found = [await post(bench, "messages", body) for _ in range(3)]
    told = [*ASK, {"role": "assistant", "content": found[taken]["content"]}, *MORE]
    await post(bench, "messages", body | {"messages": told})
    assert await parents(bench) == [taken]


async def test_equal_completions_are_continued_in_their_order(bench, equal):
    equal()
    await bench.open()
    first = await post(bench, "completions", {"prompt": "a number? ", "n": 3, "max_tokens": 20})
    for choice in first["choices"]:
        whole = "a number? " + choice["text"] + "<|im_end|>"
        await post(bench, "completions", {"prompt": whole + " and?", "max_tokens": 20})
    assert await parents(bench) == [0, 1, 2]


async def test_turns_under_a_grammar_are_counted(bench, fake_sglang):
    fake_sglang.say('{"a": 1}').say('{"a": 2}').say("free")
    await bench.open()
    body = {"messages": ASK, "n": 2, "response_format": {"type": "json_object"}}
    await post(bench, "chat/completions", body)
    await post(bench, "chat/completions", {"messages": ASK, "response_format": {"type": "text"}})
    assert (await bench.seal()).counters["constrained_turns"] == 2

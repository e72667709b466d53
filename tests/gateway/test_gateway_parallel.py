"""Parallel calls: each result reaches the model as the result of its own call, whatever protocol the agent speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

CALLS = [("add", {"a": 1}), ("sub", {"a": 2}), ("add", {"a": 3})]
PARAMETERS = {"type": "object"}
NAMES = ("add", "sub")

Turn = tuple[str, dict[str, Any], Callable[[dict[str, Any]], list[tuple[str, str]]], Callable[..., dict[str, Any]]]


def chat() -> Turn:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "do it"}],
        "tools": [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES],
    }

    def calls(answer: dict[str, Any]) -> list[tuple[str, str]]:
        made = answer["choices"][0]["message"]["tool_calls"]
        return [(call["id"], call["function"]["arguments"]) for call in made]

    def following(answer: dict[str, Any], results: list[tuple[str, str]]) -> dict[str, Any]:
        told = [{"role": "tool", "tool_call_id": name, "content": text} for name, text in results]
        return body | {"messages": [*body["messages"], answer["choices"][0]["message"], *told]}

    return "/chat/completions", body, calls, following


def responses() -> Turn:
    body: dict[str, Any] = {
        "input": [{"type": "message", "role": "user", "content": "do it"}],
        "tools": [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES],
    }

    def calls(answer: dict[str, Any]) -> list[tuple[str, str]]:
        made = [item for item in answer["output"] if item["type"] == "function_call"]
        return [(call["call_id"], call["arguments"]) for call in made]

    def following(answer: dict[str, Any], results: list[tuple[str, str]]) -> dict[str, Any]:
        told = [{"type": "function_call_output", "call_id": name, "output": text} for name, text in results]
        return body | {"input": [*body["input"], *answer["output"], *told]}

    return "/responses", body, calls, following


def messages() -> Turn:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "do it"}],
        "max_tokens": 512,
        "tools": [{"name": name, "input_schema": PARAMETERS} for name in NAMES],
    }

    def calls(answer: dict[str, Any]) -> list[tuple[str, str]]:
        return [(block["id"], str(block["input"])) for block in answer["content"] if block["type"] == "tool_use"]

    def following(answer: dict[str, Any], results: list[tuple[str, str]]) -> dict[str, Any]:
        told = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in results]
        said = [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": told}]
        return body | {"messages": [*body["messages"], *said]}

    return "/messages", body, calls, following


@pytest.mark.parametrize("protocol", [chat, responses, messages])
async def test_results_of_parallel_calls_reach_the_model_in_the_order_of_their_calls(
    bench, fake_sglang, script, protocol
):
    path, body, calls_of, following = protocol()
    script(CALLS, "done")
    await bench.open()
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {bench.keys['at-1']}"}) as http:
        answer = (await http.post(bench.url() + path, json={"model": "m", **body})).json()
        calls = calls_of(answer)
        assert [("1" in given, "2" in given, "3" in given) for _, given in calls] == [
            (True, False, False),
            (False, True, False),
            (False, False, True),
        ]
        results = [(name, f"result-{number}") for number, (name, _) in enumerate(calls)]
        body = following(answer, results)
        assert (await http.post(bench.url() + path, json={"model": "m", **body})).status_code == 200
    glue = fake_sglang.requests[1].text[len(fake_sglang.requests[0].text) :]
    places = [glue.index(text) for _, text in results]
    assert places == sorted(places)
    assert (await bench.prove(fake_sglang)).one_segment(turns=2)

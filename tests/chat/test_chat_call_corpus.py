"""Real model output, from the fixtures of the canitoolcall wheel: each parser reads it, and none runs half a call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pairs import renderer_of, wheel_folder

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.template.messages import Reply

# Fixtures: the parsers' names (calls, reasoning), and what they are known to read otherwise, none of it by running
# half a call: 'flagged' is raw text flagged ill-formed, 'differs' calls with other arguments.
BUILT_IN: dict[str, tuple[str | None, str | None, dict[str, str]]] = {
    "qwen3-hermes/": (None, None, {"truncated-second-parallel-call": "flagged"}),
    "qwen3-xml/": (
        None,
        None,
        {
            "llamacpp-coder-bare-function": "flagged",
            "llamacpp-coder-bare-function-parallel": "flagged",
            "vllm-coder-missing-close-parameter": "differs",
            "bug-missing-close-parameter-before-function": "flagged",
            "bug-coder-missing-tool-call-opener": "flagged",
            "q38-marker-in-arguments": "flagged",
            "q35-python-literals": "differs",
            "coder-python-literals": "differs",
            "coder-marker-in-arguments": "flagged",
        },
    ),
    "gpt-oss/": ("gpt-oss", "gpt-oss", {}),
}
SGLANG: dict[str, tuple[str | None, str | None, dict[str, str]]] = {
    "qwen3-hermes/": ("qwen25", "qwen3", {"truncated-second-parallel-call": "flagged"}),
    "qwen3-xml/": (
        "qwen3_coder",
        "qwen3",
        {
            "llamacpp-coder-bare-function": "flagged",
            "llamacpp-coder-bare-function-parallel": "differs",
            "vllm-coder-anyof-coercion": "differs",
            "bug-coder-missing-tool-call-opener": "flagged",
            "q38-marker-in-arguments": "flagged",
            "coder-marker-in-arguments": "differs",
        },
    ),
    "deepseek/v3.": ("deepseekv3", "deepseek-r1", {}),
    "deepseek/v31": ("deepseekv31", "deepseek-v3", {"v31-marker-in-arguments": "flagged"}),
    "deepseek/v32": (
        "deepseekv32",
        "deepseek-v3",
        {
            "v32-marker-in-arguments": "flagged",
            "v32-unescaped-string-value": "differs",
            "v32-truncated-second-parallel-call": "flagged",
        },
    ),
    "deepseek/v4.": (
        "deepseekv4",
        "deepseek-v4",
        {
            "v4-marker-in-arguments": "flagged",
            "v4-unescaped-string-value": "differs",
            "v4-truncated-second-parallel-call": "flagged",
        },
    ),
    "glm/glm45": ("glm45", "glm45", {"glm45-marker-in-arguments": "flagged"}),
    "glm/glm47": ("glm47", "glm45", {"glm47-marker-in-arguments": "flagged", "glm47-number-looking-string": "differs"}),
    "kimi/k2": ("kimi_k2", "kimi_k2", {}),
    "llama/l3": ("llama3", None, {"l3-marker-in-arguments": "flagged"}),
    "mistral/rendered": ("mistral", None, {"v13think-marker-in-arguments": "differs"}),
}


@pytest.mark.parametrize("start", BUILT_IN)
def test_the_built_in_parsers_read_what_models_write(start: str) -> None:
    assert outcomes(start, *BUILT_IN[start][:2]) == BUILT_IN[start][2]


@pytest.mark.parametrize("start", SGLANG)
def test_sglangs_parsers_read_what_models_write_behind_the_same_guards(start: str) -> None:
    pytest.importorskip(
        "sglang", reason="sglang is not on PyPI's CPU index; its parsers are tested where it is installed"
    )
    assert outcomes(start, *SGLANG[start][:2]) == SGLANG[start][2]


def outcomes(start: str, calls: str | None, reasoning: str | None) -> dict[str, str]:
    """Return misread fixtures. Asserts that a fixture without a call yields none, and that no truncation does."""
    renderer = renderer_of("qwen3")
    parser = ReplyParser(renderer, tool_call_parser=calls, reasoning_parser=reasoning)
    known = {"tool_calls": calls, "reasoning": reasoning}
    assert all((name or "built-in") in parser.readers[what] for what, name in known.items()), parser.readers
    found = {}
    for one in fixtures(start):
        opened = (one.get("generation_prompt") or "").rstrip().endswith("<think>")
        ids = renderer.encode(one["raw_output"])

        def read(finish: str, ids: list[int] = ids, tools: list[dict] = one["tools"], opened: bool = opened) -> Reply:
            return parser.parse(ids, finish=finish, tools=tools, prompt_opens_think=opened, mint=str)

        reply = read("length" if "truncated" in one["tags"] else "stop")
        made = [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]
        wanted = [(call["name"], call["arguments"]) for call in (one.get("expected") or {}).get("tool_calls") or ()]
        assert made == [] or wanted, f"{one['id']} holds no call, and {made} were made"
        whole = {name: [a for n, a in wanted if n == name] for name, _ in wanted}
        for at in range(0, len(ids), 5):
            cut = read("length", ids[:at])
            assert all(json.loads(call.arguments) in whole.get(call.name, ()) for call in cut.tool_calls), one["id"]
        if made != wanted:
            found[one["id"].partition("/")[2]] = "flagged" if reply.ill_formed else "differs" if made else "text"
    return found


def fixtures(start: str) -> Iterator[dict[str, Any]]:
    folder = wheel_folder("canitoolcall") / "_data" / "fixtures"
    for file in sorted(folder.glob("*/*.jsonl")):
        if str(file.relative_to(folder)).startswith(start):
            yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())

"""The tiny tokenizer and its template."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_agl.testing import tiny_tokenizer, tool_call_text

TOKENIZER = tiny_tokenizer()
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def render(*messages: dict, **options) -> str:
    return TOKENIZER.apply_chat_template(list(messages), tokenize=False, **options)


def call(number: int, **arguments) -> dict:
    return {"id": f"call-{number}", "type": "function", "function": {"name": "add", "arguments": arguments}}


@given(st.text())
def test_any_text_survives_encoding_and_decoding(text: str):
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


def test_specials_and_markers_are_single_tokens():
    for text in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>", "<think>", "</think>"):
        assert len(TOKENIZER.encode(text)) == 1
    assert TOKENIZER.eos_token == "<|im_end|>"
    assert len(TOKENIZER) < 320


def test_one_text_has_more_than_one_encoding():
    canonical = TOKENIZER.encode("hello the")
    letters = [token for letter in "hello the" for token in TOKENIZER.encode(letter)]
    assert canonical != letters
    assert TOKENIZER.decode(letters) == TOKENIZER.decode(canonical)


def test_turns_are_framed_and_the_next_is_opened():
    text = render({"role": "system", "content": "S"}, {"role": "user", "content": "U"}, add_generation_prompt=True)
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"


def test_tools_stand_in_the_system_prompt_with_or_without_one():
    user = {"role": "user", "content": "U"}
    bare, with_system = render(user, tools=[ADD]), render({"role": "system", "content": "S"}, user, tools=[ADD])
    for text in (bare, with_system):
        assert text.count("<|im_start|>system\n") == 1
        assert json.dumps(ADD) in text
    assert with_system.startswith("<|im_start|>system\nS\n\n")


def test_a_rendered_call_is_what_a_model_would_write():
    text = render({"role": "assistant", "content": "", "tool_calls": [call(1, a=1, b="é")]})
    assert text == f"<|im_start|>assistant\n{tool_call_text('add', {'a': 1, 'b': 'é'})}<|im_end|>\n"


def test_parallel_calls_stand_below_each_other_and_their_results_share_a_turn():
    text = render(
        {"role": "assistant", "content": "both", "tool_calls": [call(1, a=1), call(2, a=2)]},
        {"role": "tool", "tool_call_id": "call-1", "content": "one"},
        {"role": "tool", "tool_call_id": "call-2", "content": "two"},
    )
    one, two = (tool_call_text("add", {"a": number}) for number in (1, 2))
    results = "".join(f"\n<tool_response>\n{word}\n</tool_response>" for word in ("one", "two"))
    assert text == f"<|im_start|>assistant\nboth\n{one}\n{two}<|im_end|>\n<|im_start|>user{results}<|im_end|>\n"


def test_reasoning_is_kept_in_history():
    text = render({"role": "assistant", "content": "a", "reasoning_content": "r"}, {"role": "user", "content": "U"})
    assert "<think>\nr\n</think>\n\na<|im_end|>" in text


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "generation_config.json"])
def test_the_checkpoint_holds_what_a_trainer_reads(tiny_checkpoint, name: str):
    assert json.loads((tiny_checkpoint / name).read_text())


def test_the_checkpoint_loads_as_the_same_tokenizer(tiny_checkpoint):
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tiny_checkpoint)
    assert loaded.encode("hello <tool_call>é<|im_end|>") == TOKENIZER.encode("hello <tool_call>é<|im_end|>")
    assert (loaded.chat_template, loaded.eos_token) == (TOKENIZER.chat_template, "<|im_end|>")
    stops = json.loads((tiny_checkpoint / "generation_config.json").read_text())["eos_token_id"]
    assert loaded.convert_ids_to_tokens(stops) == ["<|im_end|>", "<|endoftext|>"]

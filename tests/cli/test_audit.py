"""The audit command on a fake checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slime_agl.cli.main import main
from slime_agl.testing.tokenizer import save_tiny_checkpoint

REFUSES_MORE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}"
    "{% endif %}{% if m.role == 'user' and loop.index0 and messages[loop.index0 - 1].role == 'tool' %}"
    "{{ raise_exception('a result is answered first') }}{% endif %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.reasoning_content and (loop.last or keep_thinking) %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def strict(tmp_path: Path) -> str:
    (tmp_path / "strict.jinja").write_text(REFUSES_MORE)
    return str(tmp_path / "strict.jinja")


def audit(model: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["audit", "--model", str(model), *words], env={"COLUMNS": "80"})


def test_a_template_without_forks_is_status_0_and_fits_a_terminal(model: Path) -> None:
    done = audit(model)
    assert done.exit_code == 0, done.output
    rows = {line[:32].strip(): line[32:].split() for line in done.stdout.splitlines() if " extended " in line}
    assert len(rows) == 13 and rows["tool result"] == ["extended", "as", "sampled"]
    assert "call: read back; parallel calls: read back" in done.stdout
    model_line, *rest = done.stdout.splitlines()
    assert max(map(len, rest)) <= 80
    assert done.stderr == ""


def test_what_the_template_refuses_is_status_1_and_told_apart_from_forks(model: Path, strict: str) -> None:
    done = audit(model, "--chat-template", strict)
    assert done.exit_code == 1
    assert "tool result, user                 refused" in done.stdout
    told = "several at the beginning become one; later ones are joined to the message before or after them"
    assert told in " ".join(done.stdout.split())
    assert "refused: the agent gets a 400" in done.stdout and "fork:" not in done.stdout


def test_history_template_forks_where_reasoning_is_dropped_and_a_variable_avoids_it(model: Path, strict: str) -> None:
    found = json.loads(audit(model, "--chat-template", strict, "--history", "template", "--json").stdout)
    assert found["forks"]["user"] == "history_rewritten"
    assert found["history_kwargs"] == {"keep_thinking": True}
    kept = audit(
        model, "--chat-template", strict, "--history", "template", "--kwargs", '{"keep_thinking": true}', "--json"
    )
    assert "user" not in json.loads(kept.stdout)["forks"]


def test_json_says_all(model: Path) -> None:
    found = json.loads(audit(model, "--json").stdout)
    assert found["kinds"]["parallel_tools_then_user"]["mode"] == "short"
    assert found["round_trips"] == dict.fromkeys(("call", "parallel_calls", "reasoning", "reasoning_and_call"), "ok")
    assert found["parsers"] == {"tool_calls": "built-in", "reasoning": "built-in"}
    assert (found["stop_tokens"], found["forks"]) == (["<|endoftext|>", "<|im_end|>"], {})


def test_a_parser_that_does_not_read_the_template_is_named(model: Path, tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}{% for c in m.tool_calls or [] %}"
        "{{ 'CALL ' + c.function.name + ' ' + (c.function.arguments | tojson) }}{% endfor %}"
        "{{ '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    (tmp_path / "calls.jinja").write_text(template)
    done = audit(model, "--chat-template", str(tmp_path / "calls.jinja"))
    assert "call: not read" in done.stdout and "--tool-call-parser" in done.stdout
    told = json.loads(audit(model, "--chat-template", str(tmp_path / "calls.jinja"), "--json").stdout)
    assert told["round_trips"]["call"].startswith("0 of 1 calls, and the text 'CALL probe_tool")


DEAF = (
    "{% for m in messages if m.role != 'tool' %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{{ '<|im_end|>' }}{% endfor %}"
    "{{ '<|im_start|>' }}"
)


def test_what_a_template_hides_is_status_1_and_named_though_nothing_forks(model: Path, tmp_path: Path) -> None:
    (tmp_path / "deaf.jinja").write_text(DEAF)
    done = audit(model, "--chat-template", str(tmp_path / "deaf.jinja"))
    assert done.exit_code == 1
    assert "hidden from the model  the list of tools, tool results" in done.stdout
    rows = {line[:32].strip(): line[32:].strip() for line in done.stdout.splitlines()}
    assert rows["tool result"].split(None, 1) == ["hidden", "the tool result is omitted"]
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80
    found = json.loads(audit(model, "--chat-template", str(tmp_path / "deaf.jinja"), "--json").stdout)
    assert (found["forks"], found["hidden"]) == ({}, ["tools", "tool_results"])


def test_a_missing_stop_token_is_named_with_the_flag_that_gives_it(model: Path, tmp_path: Path) -> None:
    template = DEAF.replace("<|im_end|>", "<|im_start|>").replace(" if m.role != 'tool'", "")
    (tmp_path / "opener.jinja").write_text(template)
    words = ("--chat-template", str(tmp_path / "opener.jinja"))
    told = " ".join(audit(model, *words).stdout.split())
    (missing,) = json.loads(audit(model, *words, "--json").stdout)["missing_stops"]
    assert missing["token"] == "<|im_start|>" and "user" in missing["kinds"]
    assert f"add {missing['id']} to eos_token_id in generation_config.json or to --rollout-stop-token-ids" in told
    given = json.loads(audit(model, *words, "--stop-token-id", str(missing["id"]), "--json").stdout)
    assert (given["missing_stops"], "user" in given["forks"]) == ([], False)


def test_the_doctor_names_what_a_template_hides_and_lacks(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "deaf")
    template = DEAF.replace("<|im_end|>", "<|im_start|>")
    for file in (tmp_path / "deaf").glob("*.jinja"):
        file.unlink()
    config = tmp_path / "deaf" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    done = CliRunner().invoke(main, ["doctor", "--model", str(tmp_path / "deaf"), "--json"])
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    hidden, stops = found["hidden from the model"], found["stop tokens"]
    assert hidden["verdict"] == "look" and "the list of tools, tool results" in hidden["words"]
    assert (
        stops["verdict"] == "look" and "--rollout-stop-token-ids" in stops["words"] and "<|im_start|>" in stops["words"]
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "/nowhere"], "--model '/nowhere' does not exist"),
        (["--model", ".", "--kwargs", "[1]"], "it is a list, not an object"),
        (["--model", ".", "--kwargs", "{"], "write a JSON object such as"),
        (["--model", ".", "--history", "both"], "'append', 'template'"),
        ([], "Missing option '--model'"),
    ],
)
def test_a_wrong_word_is_status_2_and_says_what_to_write(words: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["audit", *words])
    assert done.exit_code == 2
    assert message in done.stderr and "Traceback" not in done.output


def test_a_directory_without_a_tokenizer_is_status_2(tmp_path: Path) -> None:
    done = audit(tmp_path)
    assert done.exit_code == 2 and "no tokenizer at" in done.stderr

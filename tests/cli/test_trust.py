"""Nothing that a record names is run or fetched without the user's consent; it is listed first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slime_agl.cli.main import main
from slime_agl.record.run import RecordWriter
from slime_agl.rerun.trust import file_of, look_here, own_code
from slime_agl.rollout import shutdown
from slime_agl.testing.tokenizer import save_tiny_checkpoint
from tests.report.made import TEXTS, made

EVIL = (
    "from pathlib import Path\nPath({ran!r}).touch()\n"
    "async def agent(task, llm): return 1.0\ndef reward(*_): return 1.0\n"
)
AGENTS = "tests.cli.rerun_agents."


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module and a package that say when they were run: their file `ran` is there then."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = EVIL.format(ran=str(tmp_path / "ran"))
    (tmp_path / "evil_records_agent.py").write_text(code)
    (tmp_path / "evil_records_package").mkdir()
    (tmp_path / "evil_records_package" / "__init__.py").write_text(code)
    (tmp_path / "evil_records_package" / "inner.py").write_text(code)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("evil_records")]:
        del sys.modules[name]


def record(place: Path, **header: Any) -> Path:
    """A record of one execution, whose header says what it is told to say."""
    row = header.pop("row", None)
    checkpoint = place / "checkpoint"
    if not checkpoint.exists():
        save_tiny_checkpoint(checkpoint)
    full = {
        "name": "step",
        "step": 0,
        "agent": "evil_records_agent.agent",
        "model": "m",
        "checkpoint": str(checkpoint),
        "stop_ids": [1],
        "agl": {"agent": "evil_records_agent.agent"},
        "arguments": {},
        "context_length": None,
        **header,
    }
    writer = RecordWriter(place / "run" / "step-000000.jsonl", full, lambda ids: [TEXTS[i] for i in ids])
    writer.write(made(row=row))
    writer.close()
    return place / "run"


def rerun(run: Path, *words: str) -> Any:
    try:
        return CliRunner().invoke(main, ["rerun", str(run), *words], env={"COLUMNS": "100"})
    finally:
        shutdown()


NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "agent": ({}, "agent: evil_records_agent.agent ("),
    "an agent in a package": ({"agl": {"agent": "evil_records_package.inner.agent"}}, "evil_records_package/inner.py"),
    "reward": ({"agl": {"agent": "", "reward": "evil_records_agent.reward"}}, "reward: evil_records_agent.reward ("),
    "task": ({"agl": {"agent": "", "task": "evil_records_agent.agent"}}, "task: evil_records_agent.agent ("),
    "custom reward": (
        {"arguments": {"custom_rm_path": "evil_records_agent.reward"}},
        "reward function: evil_records_agent",
    ),
    "a row's reward": (
        {"row": {"prompt": "a", "label": None, "metadata": {}, "custom_rm_path": "evil_records_agent.reward"}},
        "reward function: evil_records_agent.reward (",
    ),
    "template": ({"arguments": {"chat_template_path": "/etc/hostname"}}, "chat template: /etc/hostname ("),
    "routers": ({"arguments": {"sglang_model_routers": {"judge": ["10.0.0.1", 1]}}}, "other models: "),
    "a name of the Hub": (
        {"checkpoint": "someone/some-model"},
        "checkpoint: someone/some-model (not a local directory",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_a_record_names_is_told_and_not_touched(evil: Path, name: str) -> None:
    header, words = NAMED[name]
    own = () if "agent" in name else ("--agent", AGENTS + "two_turns")
    done = rerun(record(evil, **header), *own)
    assert done.exit_code == 2 and done.stdout == ""
    told = done.stderr.replace("\n", "")
    assert words in told and "Give --trust" in told
    assert not (evil / "ran").exists()


def test_a_relative_checkpoint_with_code_of_its_own_is_not_loaded(evil: Path) -> None:
    run = record(evil, checkpoint="checkpoint")
    settings = evil / "checkpoint" / "tokenizer_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"auto_map": {"AutoTokenizer": ["code.T", None]}})
    )
    (evil / "checkpoint" / "code.py").write_text(EVIL.format(ran=str(evil / "ran")))
    done = rerun(run, "--agent", AGENTS + "two_turns")
    assert done.exit_code == 2 and "names code of its own" in done.stderr and not (evil / "ran").exists()
    assert own_code(str(evil / "checkpoint")) and own_code("someone/some-model") and not own_code(str(evil / "run"))


def test_with_trust_it_is_shown_and_then_run(evil: Path) -> None:
    done = rerun(record(evil), "--trust")
    assert f"trusted: agent: evil_records_agent.agent ({evil / 'evil_records_agent.py'})" in done.stderr
    assert (evil / "ran").exists()


def test_the_users_own_agent_needs_no_trust(evil: Path) -> None:
    (evil / "sglang.py").write_text(EVIL.format(ran=str(evil / "ran")))
    done = rerun(record(evil), "--agent", AGENTS + "two_turns")
    assert "--trust" not in done.stderr and not (evil / "ran").exists()
    assert str(evil) not in sys.path


def test_the_working_directory_is_looked_in_for_what_stands_there_only(evil: Path) -> None:
    look_here(["installed.package.agent", "no path at all"])
    assert str(evil) not in sys.path
    look_here(["evil_records_package.inner:agent"])
    assert sys.path[0] == str(evil)
    assert file_of("evil_records_package.inner.agent") == str(evil / "evil_records_package" / "inner.py")
    assert file_of("nowhere.to.be.found") == "not found on this machine" and not (evil / "ran").exists()


def test_other_arguments_of_slime_are_not_taken_from_a_record(evil: Path) -> None:
    arguments = {
        "custom_generate_function_path": "evil_records_agent.agent",
        "prompt_data": "/dev/zero",
        "rm_url": "http://x",
    }
    done = rerun(record(evil, arguments=arguments), "--agent", AGENTS + "two_turns")
    assert done.exit_code in (0, 1, 2) and done.exception is None or isinstance(done.exception, SystemExit)
    assert not (evil / "ran").exists()


def test_a_header_without_what_a_rerun_needs_is_refused(evil: Path) -> None:
    run = record(evil)
    (file,) = run.glob("*.jsonl")
    header, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(json.dumps({"format": "slime_agl.record", "version": 3}).encode() + b"\n" + b"".join(rest))
    done = rerun(run, "--trust")
    assert done.exit_code == 2 and "has no checkpoint and no step and no stop_ids" in done.stderr

"""`slime-agl new`: a copy of an example that stands alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from slime_agl.cli.main import main
from slime_agl.cli.new import command
from slime_agl.config import Config

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# Examples that slime's own driver trains.
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/run.sh") if "FLAGS=(" in path.read_text())


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, ["new", *words], env={"COLUMNS": "300"})


def copied(name: str, example: str, folder: Path) -> Path:
    done = invoke(name, "--from", example, "--into", str(folder), "--no-check")
    assert done.exit_code == 0, done.output
    return folder / name


@pytest.mark.parametrize("example", NAMES)
def test_a_copy_has_its_own_name_everywhere_and_lacks_nothing(example: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("EXAMPLES", str(tmp_path))
    folder = copied("shop", example, tmp_path)
    assert (folder / "README.md").read_text().splitlines()[0] == "# shop"
    config = Config.read(yaml.safe_load((folder / "agl.yaml").read_text())["agl"])
    if isinstance(config.agent, str):
        assert config.agent == "shop.agent:shop" and "def shop(" in (folder / "agent.py").read_text()
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file() and path.suffix in (".py", ".yaml")]
    assert not any(f"{example}.agent" in text or f"{example}.data" in text for text in texts)
    assert {"common.sh", "local.py", "run.sh"} <= {path.name for path in folder.iterdir()}
    assert os.access(folder / "run.sh", os.X_OK) and not list(folder.rglob("__pycache__"))


@pytest.mark.parametrize("example", NAMES)
def test_a_copy_prints_flags_that_lead_to_its_own_files(example: str, tmp_path: Path):
    """In a place without the clone beside it, as in slime's container."""
    folder = copied("shop", example, tmp_path)
    models = tmp_path / "slime" / "scripts" / "models"
    models.mkdir(parents=True)
    (models / "qwen3-4B.sh").write_text("MODEL_ARGS=(--num-layers 36)\n")
    environment = {**os.environ, "SLIME_DIR": str(tmp_path / "slime"), "NUM_GPUS": "4"}
    done = subprocess.run([folder / "run.sh", "--print"], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    flags = done.stdout.splitlines()
    own = [Path(line) for line in flags if line.startswith(str(tmp_path))]
    assert {folder / name for name in ("agl.yaml", "train.jsonl", "eval.jsonl")} <= set(own)
    assert all(path.is_relative_to(folder) and path.exists() for path in own)
    assert f"/root/Qwen3-4B_{folder.name}" in flags and str(EXAMPLES) not in done.stdout


def test_the_flags_that_matter_stand_in_the_script_itself():
    for name in NAMES:
        script = (EXAMPLES / name / "run.sh").read_text()
        head = script.partition("COMMON=")[0]
        for flag in ("rollout-function-path", "custom-config-path", "rollout-batch-size", "global-batch-size"):
            assert f"--{flag} " in head, f"{name} hides --{flag}"
        assert "--rollout-function-path" not in (EXAMPLES / "common.sh").read_text()


def test_the_check_is_run_where_the_copy_is_and_its_status_is_returned(tmp_path: Path, monkeypatch):
    ran = []

    def run(words, *, cwd, env):
        ran.append((words, cwd, env["EXAMPLES"]))
        return subprocess.CompletedProcess(words, 1)

    monkeypatch.setattr(command.subprocess, "run", run)
    done = invoke("shop", "--into", str(tmp_path))
    ((words, cwd, examples),) = ran
    assert done.exit_code == 1 and "its check failed" in done.output
    assert words[:3] == [sys.executable, "-m", "slime_agl.cli.main"] and cwd == tmp_path == Path(examples)
    assert words[3:8] == ["check", "--agent", "shop.agent:shop", "--data", "shop/train.jsonl"]


def test_an_example_with_a_trainer_of_its_own_is_copied_and_run_for_a_step(tmp_path: Path, monkeypatch):
    ran = []

    def run(words, *, cwd, env):
        ran.append((words[1:], cwd))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(command.subprocess, "run", run)
    done = invoke("shop", "--from", "agent_lightning_trainer", "--into", str(tmp_path))
    assert done.exit_code == 0 and f"cd {tmp_path / 'shop'} && python train.py --local" in done.stdout
    assert ran == [(["train.py", "--local", "--steps", "1", "--runners", "2"], tmp_path / "shop")]
    assert {path.name for path in (tmp_path / "shop").iterdir()} == {"README.md", "agent.py", "train.py"}
    assert (tmp_path / "shop" / "README.md").read_text().startswith("# shop\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["shop", "--from", "calc_tol"], "there is no example 'calc_tol'. Did you mean 'calc_tool'?"),
        (["My-Shop"], "'My-Shop' cannot be the name of a Python module"),
        (["there"], "there exists; choose another name"),
    ],
)
def test_mistakes_are_told_and_nothing_is_made(words: list[str], told: str, tmp_path: Path):
    (tmp_path / "there").mkdir()
    done = invoke(*words, "--into", str(tmp_path), "--no-check")
    assert done.exit_code == 2 and told in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_the_list_has_a_line_per_example():
    lines = invoke("--list").stdout.splitlines()
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert {line.split()[0] for line in lines} == folders > set(NAMES) and all(len(line.split()) > 4 for line in lines)
    assert invoke().exit_code == 2

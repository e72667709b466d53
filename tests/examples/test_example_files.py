"""Every example folder has data that its script writes, a configuration, and a training script that slime accepts."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from slime_agl.config import Config
from slime_agl.harness.catalog import program_of
from tests.slime_flags import known_flags, slime_folder

EXAMPLES = Path(__file__).parents[2] / "examples"
ALL = sorted(path.parent.name for path in EXAMPLES.glob("*/run.sh"))
MADE = sorted(path.parent.name for path in EXAMPLES.glob("*/data.py"))
COMMON = EXAMPLES / "common.sh"


def read(name: str, file: str) -> list[dict]:
    return [json.loads(line) for line in (EXAMPLES / name / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", MADE)
def test_rows_are_those_that_the_script_writes_and_none_is_evaluated_that_trains(name: str):
    made = importlib.import_module(f"{name}.data").rows()
    assert {file: read(name, file) for file in made} == made
    assert len(made["train"]) >= 64 and len(made["eval"]) >= 8
    prompts = [row["prompt"] for rows in made.values() for row in rows]
    assert len(prompts) == len(set(prompts))
    assert all(set(row) == {"prompt", "label", "metadata"} for rows in made.values() for row in rows)


@pytest.mark.parametrize("name", ALL)
def test_the_configuration_is_accepted_and_names_the_agent(name: str):
    config = Config.read(yaml.safe_load((EXAMPLES / name / "agl.yaml").read_text(encoding="utf-8"))["agl"])
    if not isinstance(config.agent, str):
        assert program_of(config.agent).packages
        return
    folder, _, function = config.agent.partition(".agent:")
    assert (EXAMPLES / folder / "agent.py").exists() and f"def {function}(" in (
        EXAMPLES / folder / "agent.py"
    ).read_text()


@pytest.mark.parametrize("name", ALL)
def test_the_readme_is_one_screen_and_names_every_file(name: str):
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 50
    files = {path.name for path in (EXAMPLES / name).iterdir() if path.is_file() and path.name != "README.md"}
    assert {file for file in files if f"`{file}`" not in text} == set()


def test_the_common_script_parses():
    subprocess.run(["bash", "-n", str(COMMON)], check=True)


@pytest.mark.parametrize("name", ALL)
def test_without_gpus_the_script_says_what_to_do_instead(name: str):
    done = run_script(name, NUM_GPUS="0")
    assert done.returncode == 1 and "--local" in done.stderr
    assert "unknown option --fast" in run_script(name, "--fast").stderr


@pytest.mark.parametrize("name", ALL)
def test_a_missing_package_is_named_before_anything_starts(name: str, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    done = run_script(name, "--local", SLIME_AGL_PYTHON=str(python))
    assert done.returncode == 1 and "pip install" in done.stderr


@pytest.mark.needs_slime
@pytest.mark.parametrize("name", ALL)
def test_slime_knows_every_flag(name: str, slime_dir: Path, flags_of_slime: set[str]):
    done = run_script(name, "--print", SLIME_DIR=str(slime_dir), NUM_GPUS="4")
    assert done.returncode == 0, done.stderr
    driver, *given = done.stdout.splitlines()
    assert (slime_dir / driver).exists()
    flags = {line for line in given if line.startswith("--")}
    assert "--rollout-function-path" in flags and flags - flags_of_slime == set()


def run_script(name: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUM_GPUS": "0", **variables}
    script = str(EXAMPLES / name / "run.sh")
    return subprocess.run([script, *words], capture_output=True, text=True, env=environment, timeout=60)


@pytest.fixture(scope="module")
def slime_dir() -> Path:
    return slime_folder()


@pytest.fixture(scope="module")
def flags_of_slime(slime_dir: Path) -> set[str]:
    return known_flags(slime_dir)

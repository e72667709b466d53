"""Settings and prompts that reach Goose and OpenHands, as stand-ins started in their place see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_agl.harness.catalog import PROGRAMS
from slime_agl.harness.environment import Access, contract
from slime_agl.harness.install import Installed
from slime_agl.harness.program import filled
from slime_agl.harness.run import LAUNCH, launch_script

ACCESS = Access(endpoint="http://127.0.0.1:8000/attempts/7/v1", key="its own", model="policy")
PROMPT = 'Write 42 into answer.txt.\nIt\'s "all" $HOME.\n'
DUMP = """\
import json, os, sys
with open(os.environ["HOME"] + "/given.json", "w") as given:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ)}, given)
"""


@pytest.fixture
def started(tmp_path: Path):
    """`started(name, stand_ins)`: start a program's command; stand_ins: texts of executables and modules by path below
    the folder of installed programs. Returns the home folder.
    """

    def start(name: str, stand_ins: dict[str, str]) -> Path:
        program, root = PROGRAMS[name], tmp_path / "root"
        given = contract(ACCESS, {"prompt": PROMPT}, events=False)
        launch, home, bins = Path(f"{root}{LAUNCH}"), tmp_path / "home", tmp_path / "bin"
        for folder in (launch, home, bins, root / "app"):
            folder.mkdir(parents=True)
        for path, text in stand_ins.items():
            (bins / path).parent.mkdir(parents=True, exist_ok=True)
            (bins / path).write_text(text)
            (bins / path).chmod(0o755)
        for number, text in enumerate(program.files.values()):
            (launch / f"file{number}").write_text(filled(text, given))
        (launch / "prompt").write_text(PROMPT)
        (launch / "run").write_text(launch_script(program, "/app", Installed(str(bins))))
        more = {key: filled(value, given) for key, value in program.env.items()}
        env = {**given, **more, "PATH": os.environ["PATH"], "HOME": str(home), "SANDBOX_ROOT": str(root)}
        subprocess.run(["bash", str(launch / "run")], env=env, check=True, timeout=60, stdin=subprocess.DEVNULL)
        return home

    return start


def test_goose_is_told_the_attempts_address_and_to_leave_the_conversation_alone(started):
    home = started("goose", {PROGRAMS["goose"].executable: f"#!{sys.executable} -I\n{DUMP}"})
    given = json.loads((home / "given.json").read_text())
    argv, env = given["argv"], given["env"]
    assert argv[0] == "run" and {"--no-session", "--no-profile"} <= set(argv)
    assert argv[argv.index("--with-builtin") + 1] == "developer"
    assert Path(argv[argv.index("--instructions") + 1]).read_text() == PROMPT
    assert f"{env['OPENAI_HOST']}/v1" == ACCESS.endpoint
    assert (env["OPENAI_API_KEY"], env["GOOSE_MODEL"], env["GOOSE_PROVIDER"]) == ("its own", "policy", "openai")
    assert (env["GOOSE_MODE"], env["GOOSE_TELEMETRY_ENABLED"]) == ("auto", "false")
    # From 32,000 tokens on it moves a message before each call; 0 means that it never compacts.
    assert int(env["GOOSE_CONTEXT_LIMIT"]) < 32_000 and env["GOOSE_AUTO_COMPACT_THRESHOLD"] == "0"
    assert env["GOOSE_TOOL_PAIR_SUMMARIZATION"] == "false" and env["GOOSE_DISABLE_SESSION_NAMING"] == "true"


def test_openhands_has_its_settings_and_asks_no_other_host(started):
    outside = "raise AssertionError('it asks another host')"
    entry = (
        f"{DUMP}\n"
        "import openhands.sdk.skills.skill as skill, openhands_cli\n"
        "def main():\n"
        "    assert openhands_cli.__version__ == '0.0.0' and not skill.update_skills_repository('url')\n"
        "    with open(os.environ['HOME'] + '/given.json', 'w') as given:\n"
        "        json.dump(sys.argv[1:], given)\n"
    )
    home = started(
        "openhands",
        {
            "openhands": "",
            "python": f'#!/bin/sh\nPYTHONPATH="$(dirname "$0")/site" exec {sys.executable} "$@"\n',
            "site/openhands_cli/__init__.py": "__version__ = '1.16.0'\n",
            "site/openhands_cli/entrypoint.py": entry,
            "site/openhands/sdk/skills/skill.py": f"def update_skills_repository(*given, **more): {outside}\n",
        },
    )
    assert json.loads((home / "given.json").read_text()) == ["--headless", "--json", "--task", PROMPT]
    settings = json.loads((home / ".openhands" / "agent_settings.json").read_text())
    llm = settings["llm"]
    assert (llm["model"], llm["base_url"], llm["api_key"]) == ("openai/policy", ACCESS.endpoint, "its own")
    assert settings["condenser"] is None

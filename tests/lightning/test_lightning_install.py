"""The install into slime's image: without Agent Lightning's own requirements, which change what SGLang pins."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

LISTED = Path(__file__).parents[2] / "scripts" / "image-requirements.txt"
# Exactly pinned by sglang 0.5.15.post1, but for transformers, which is asked for with a bound that it meets; and what
# newer versions of litellm[proxy] change in its image.
NOT_TO_BE_CHANGED = {"openai", "torch", "litellm", "openai-harmony", "outlines", "xgrammar", "soundfile", "blobfile"}


def listed() -> list[Requirement]:
    lines = LISTED.read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def name_of(requirement: Requirement) -> str:
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def needed(name: str) -> list[Requirement]:
    try:
        found = [Requirement(line) for line in requires(name) or ()]
    except PackageNotFoundError:
        return []
    return [each for each in found if not each.marker or each.marker.evaluate({"extra": ""})]


def test_nothing_that_is_listed_brings_what_sglang_pins():
    seen, todo = set(), [name_of(requirement) for requirement in listed()]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [name_of(requirement) for requirement in needed(name)]
    assert len(seen) > 40 and not seen & NOT_TO_BE_CHANGED


def test_all_that_slime_agl_requires_is_listed_but_agent_lightning():
    ours = {name_of(requirement) for requirement in needed("slime_agl")}
    assert ours - {name_of(requirement) for requirement in listed()} == {"agentlightning"}


def test_the_runtime_imports_without_what_is_not_listed():
    names = {name_of(requirement) for requirement in listed()}
    left_out = {name_of(requirement) for requirement in needed("agentlightning")} - names - {"openai"}
    assert "litellm" in left_out
    modules = [module for module, packages in packages_distributions().items() if left_out & set(packages)]
    program = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import slime_agl.assemble
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr

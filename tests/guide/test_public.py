"""The public names: written down, documented, and the only ones that documents name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from slime_agl.guide import pages
from slime_agl.guide.public import MODULES

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(pages.FOLDER.glob("*.md")),
    *sorted(EXAMPLES.glob("*/README.md")),
    *sorted(EXAMPLES.glob("*/agl.yaml")),
    *sorted(EXAMPLES.glob("*/run.sh")),
    EXAMPLES / "common.sh",
]
# Run as programs, with `python -m`; pytest and pydoc find the third.
PROGRAMS = {"slime_agl.harness", "slime_agl.cli.main", "slime_agl.testing"}


def public_names() -> set[str]:
    return {f"{name}.{public}" for name in MODULES for public in importlib.import_module(name).__all__}


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_lists_what_is_public_and_documents_all_of_it(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert sorted(module.__all__) == list(module.__all__) and len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert getattr(module, public).__doc__, f"{name}.{public} has no docstring"


def test_the_page_documents_the_public_names_and_no_other() -> None:
    shown, module = set(), ""
    for heading in pages.page("api").headings[1:]:
        if heading in MODULES:
            module = heading
        elif found := re.match(r"(?:class )?(\w+)(?:\(|$)", heading):
            shown.add(f"{module}.{found[1]}")
    assert shown == public_names()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_nothing_that_is_not_public(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = {name.rstrip(".") for name in re.findall(r"(?<![\w./-])slime_agl(?:\.\w+)+", text)}
    public = public_names()
    known = public | set(MODULES) | PROGRAMS
    # An attribute of a public name, and a package on the way to one, are known with it.
    assert {
        name
        for name in named
        if not any(name == one or name.startswith(f"{one}.") for one in known if one in public or name == one)
    } == set()

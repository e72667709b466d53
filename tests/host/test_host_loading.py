"""Import paths of users' own code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slime_agl.errors import ConfigError
from slime_agl.host import loading


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package `their_agents` with modules `solver`, `broken` and `incomplete`."""
    folder = tmp_path / "their_agents"
    folder.mkdir()
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "solver.py").write_text("class Team:\n    def solve(): ...\n\ndef solve_maths(): ...\n", encoding="utf-8")
    (folder / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    (folder / "incomplete.py").write_text("import a_package_that_is_missing\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "their_agents"
    for name in [name for name in sys.modules if name.startswith("their_agents")]:
        del sys.modules[name]


@pytest.mark.parametrize("path", ["their_agents.solver.solve_maths", "their_agents.solver:solve_maths"])
def test_both_spellings_name_the_same_object(package, path):
    assert loading.load_object(path).__name__ == "solve_maths"


def test_after_a_colon_attributes_may_be_nested(package):
    assert loading.load_object("their_agents.solver:Team.solve").__qualname__ == "Team.solve"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("solve", ["'solve'", "pkg.module.name"]),
        ("their_agents.solver.", ["pkg.module:name"]),
        ("their agents.solver", ["pkg.module:name"]),
        ("their_agent.solver.solve_maths", ["no module 'their_agent'", "Did you mean 'their_agents'?", "PYTHONPATH"]),
        ("their_agents.solvr.solve_maths", ["package their_agents has no module 'solvr'", "Did you mean 'solver'?"]),
        (
            "their_agents.solver.solve_math",
            ["module their_agents.solver has no 'solve_math'", "Did you mean 'solve_maths'?"],
        ),
        ("their_agents.solver.Team.solve", ["their_agents.solver is a module", "their_agents.solver:Team.attribute"]),
        ("their_agents.solver:Team.sove", ["object Team has no 'sove'", "Did you mean 'solve'?"]),
        ("their_agents.broken.solve", ["importing their_agents.broken raised ZeroDivisionError: division by zero"]),
        (
            "their_agents.incomplete.solve",
            ["their_agents.incomplete imports a_package_that_is_missing, which is not installed"],
        ),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_broke(package, path, words):
    with pytest.raises(ConfigError) as raised:
        loading.load_object(path, key="agl.agent")
    for word in ["agl.agent", *words]:
        assert word in str(raised.value)


def test_load_function_raises_as_import_does():
    assert loading.load_function("json.dumps")({}) == "{}"
    with pytest.raises(ModuleNotFoundError):
        loading.load_function("no_such_module.f")
    with pytest.raises(AttributeError):
        loading.load_function("json.no_such_function")


def test_slimes_own_filters_are_found_without_slime():
    path = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    assert loading.load_function(path).__name__ == "check_reward_nonzero_std"
    assert loading.load_object(path).__name__ == "check_reward_nonzero_std"


def test_a_module_that_breaks_while_it_is_imported_is_named_with_the_place(tmp_path, monkeypatch):
    (tmp_path / "breaks_at_import.py").write_text("x = 1\nraise RuntimeError('no key')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"raised RuntimeError: no key \(.*breaks_at_import.py, line 2\)"):
        loading.load_object("breaks_at_import.agent")

"""An agent that workers cannot import is refused by name, before anything is sampled."""

from __future__ import annotations

import platform
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slime_agl import rollout
from slime_agl.assemble import current
from slime_agl.config import Config
from slime_agl.errors import ConfigError
from slime_agl.testing import FakeSGLang, ListDataSource, chat_agent, make_args, save_tiny_checkpoint
from slime_agl.workers.importable import require_importable, require_portable

COUNT = {"workers": {"count": 1}}


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[Any]:
    """The message with which a run on one subprocess worker is refused."""
    checkpoint = save_tiny_checkpoint(tmp_path / "checkpoint")

    def run(agent: str) -> str:
        with FakeSGLang() as fake:
            args = make_args(
                fake, checkpoint, agl={"agent": agent, **COUNT}, rollout_batch_size=1, n_samples_per_prompt=1
            )
            with pytest.raises(ConfigError) as caught:
                rollout.generate(args, 0, ListDataSource(["one"], 1), evaluation=False)
            assert fake.requests == [] and current() is None
            return str(caught.value)

    yield run
    rollout.shutdown()


def test_a_module_that_only_this_process_has_is_named_with_the_machine(refused: Any, monkeypatch: Any) -> None:
    module = types.ModuleType("made_on_the_spot")
    module.agent = chat_agent()  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "made_on_the_spot", module)
    words = refused("made_on_the_spot.agent")
    assert words.startswith(
        f"a worker on {platform.node()} cannot import the agent: agl.agent 'made_on_the_spot.agent'"
    )
    assert "there is no module 'made_on_the_spot'" in words and "runtime_env" in words


def test_an_attribute_that_only_this_process_has_set_is_named(refused: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("tests.workers.agents.set_later", chat_agent(), raising=False)
    words = refused("tests.workers.agents.set_later")
    assert "agl.agent 'tests.workers.agents.set_later': module tests.workers.agents has no 'set_later'" in words


@pytest.mark.parametrize("path", ["__main__.agent", "__main__:agent"])
def test_the_script_that_runs_is_refused_before_a_worker_is_started(refused: Any, path: str) -> None:
    words = refused(path)
    assert words.startswith(f"agl.agent is {path!r}") and "move it into a module" in words


@pytest.mark.parametrize("key", ["reward", "task"])
def test_functions_of_the_script_are_refused_too(key: str) -> None:
    with pytest.raises(ConfigError, match=f"agl.{key} is '__main__.f'"):
        require_portable(Config.read({"agent": "a.b", key: "__main__.f", **COUNT}))


def test_what_can_be_imported_passes() -> None:
    config = Config.read({"agent": "tests.workers.agents.four_turns", "task": {"a": "prompt"}, **COUNT})
    require_portable(config)
    require_importable(config)

"""Pytest fixtures for testing agents; pytest loads them wherever this package is installed.

    def test_my_agent_adds_with_its_tool(fake_sglang, run_rollout):
        fake_sglang.call_tool("add", {"a": 1, "b": 2}).say("3")
        output = run_rollout("my_package.agents:adder", ["1 + 2?"])
        assert output.samples[0][0].reward == 1.0

No fixture needs a network, a GPU or slime.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from slime_agl.testing.host import ListDataSource, Row
    from slime_agl.testing.sglang import FakeSGLang

# pytest loads this module in every run of every user, so it imports nothing until a fixture is requested.

DEADLINE_SECONDS = 60.0

# Test modules import agentlightning before any fixture runs; without this, its import downloads a price list.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


UNDER_SLIMES_CONTRACT = any(name.startswith("SLIME_CONTRACT_") for name in os.environ)


@pytest.fixture(scope="session", autouse=UNDER_SLIMES_CONTRACT)
def _slimes_contract() -> Iterator[None]:
    """Supply arguments under slime's plugin contract tests; see `slime_agl.testing.contracts`."""
    if getattr(sys.modules.get("transformers"), "__spec__", None) is None:
        sys.modules.pop("transformers", None)  # an empty module that slime's tests put in its place

    from slime_agl.testing.contracts import checked_here, with_arguments

    with with_arguments() if checked_here() else nullcontext():
        yield


@pytest.fixture
def fake_sglang() -> Iterator[FakeSGLang]:
    """A running `slime_agl.testing.sglang.FakeSGLang`, stopped after the test."""
    from slime_agl.testing.sglang import FakeSGLang

    with FakeSGLang() as fake:
        yield fake


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for `--hf-checkpoint` with the tokenizer of `fake_sglang`; see `save_tiny_checkpoint`."""
    from slime_agl.testing.tokenizer import save_tiny_checkpoint

    return save_tiny_checkpoint(tmp_path_factory.mktemp("tiny_checkpoint"))


@pytest.fixture
def rollout_args(fake_sglang: FakeSGLang, tiny_checkpoint: Path) -> Callable[..., Namespace]:
    """`rollout_args(**overrides)` returns slime's arguments for rollouts on `fake_sglang`."""
    from slime_agl.testing.host import make_args

    return lambda **overrides: make_args(fake_sglang, tiny_checkpoint, **overrides)


@pytest.fixture
def run_rollout(rollout_args: Callable[..., Namespace], tmp_path: Path) -> Iterator[RunRollout]:
    """A function that runs an agent as slime would; see `RunRollout`. The runtime is closed after the test."""
    from slime_agl.rollout import shutdown

    with ExitStack() as stack:
        stack.callback(shutdown)
        yield RunRollout(rollout_args, tmp_path, stack)


class RunRollout:
    """Calls `slime_agl.rollout.generate` once per call.

    data_source: of the latest call; it records the groups that were taken and put back.
    """

    data_source: ListDataSource

    def __init__(self, make_args: Callable[..., Namespace], directory: Path, stack: ExitStack) -> None:
        self._make_args = make_args
        self._directory = directory
        self._stack = stack

    def __call__(
        self,
        agent: object,
        rows: Sequence[Row],
        *,
        n_samples: int = 1,
        evaluation: bool = False,
        rollout_id: int = 0,
        agl: Mapping[str, Any] | None = None,
        **overrides: object,
    ) -> Any:
        """Run `agent` on every row and return the output of `generate`.

        agent: an agent, its import path, or a mapping as `agl.agent`. rows: see `ListDataSource`. n_samples: executions
        per row. evaluation: use the rows as the eval dataset `rows`. agl: further keys of the `agl:` section.
        overrides: further arguments of slime. Blocks until the step is done; in a coroutine, use `asyncio.to_thread`.
        """
        from slime_agl.rollout import generate
        from slime_agl.testing.host import ListDataSource
        from slime_agl.testing.paths import importable

        named = agent if isinstance(agent, Mapping) else self._stack.enter_context(importable(agent))
        section = {"agent": named, **(agl or {})}
        section["runners"] = {"timeout_seconds": DEADLINE_SECONDS, **section.get("runners", {})}
        given = {"rollout_batch_size": len(rows), "n_samples_per_prompt": n_samples, "agl": section}
        if evaluation:
            given |= self._eval_dataset(rows, n_samples)
        args = self._make_args(**{**given, **overrides})
        self.data_source = ListDataSource(rows, args.n_samples_per_prompt)
        return generate(args, rollout_id, self.data_source, evaluation=evaluation)

    def _eval_dataset(self, rows: Sequence[Row], n_samples: int) -> dict[str, object]:
        path = self._directory / "rows.jsonl"
        full = [row if isinstance(row, Mapping) else {"prompt": row} for row in rows]
        path.write_text("".join(json.dumps({"label": None, **row}) + "\n" for row in full), encoding="utf-8")
        return {
            "eval_prompt_data": ["rows", str(path)],
            "eval_input_key": "prompt",
            "eval_label_key": "label",
            "n_samples_per_eval_prompt": n_samples,
        }

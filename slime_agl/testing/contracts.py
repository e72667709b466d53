"""Arguments for slime's plugin contract tests, which call a rollout function with `args=None`, or without `agl`.

Environment variables (SLIME_CONTRACT_..._PATH) name the functions that slime's tests check. If one names a function of
this package, the pytest plugin lets it run an agent on a scripted engine, so that the contract is checked on the real
output of `generate`. The rest of the package is unaware of this.
"""

from __future__ import annotations

import functools
import json
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest

import slime_agl.generate
import slime_agl.rollout
from slime_agl.testing.agents import chat_agent
from slime_agl.testing.host import make_args
from slime_agl.testing.paths import importable
from slime_agl.testing.sglang import FakeSGLang
from slime_agl.testing.tokenizer import save_tiny_checkpoint

PREFIX = "SLIME_CONTRACT_"
GROUPS, SAMPLES = 2, 2
R = TypeVar("R")


def checked_here() -> bool:
    """Check if slime's contract tests run on a function of this package."""
    return any(name.startswith(PREFIX) and value.startswith("slime_agl.") for name, value in os.environ.items())


@contextmanager
def with_arguments() -> Iterator[None]:
    """While the context lasts, supply working arguments to `rollout.generate` and `generate.generate`."""
    with ExitStack() as stack:
        fake = stack.enter_context(FakeSGLang(default="ok"))
        directory = Path(stack.enter_context(TemporaryDirectory()))
        args = _args(fake, directory, stack.enter_context(importable(chat_agent())))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        stack.callback(slime_agl.rollout.shutdown)
        for module in (slime_agl.rollout, slime_agl.generate):
            patch.setattr(module, "generate", _given(module.generate, args))
        yield


def _given(function: Callable[..., R], fallback: Namespace) -> Callable[..., R]:
    @functools.wraps(function)
    def called(args: Namespace | None, *rest: object, **more: object) -> R:
        return function(args if getattr(args, "agl", None) else fallback, *rest, **more)

    return called


def _args(fake: FakeSGLang, directory: Path, agent: str) -> Namespace:
    rows = directory / "rows.jsonl"
    rows.write_text(json.dumps({"input": "go", "label": None}) + "\n", encoding="utf-8")
    return make_args(
        fake,
        save_tiny_checkpoint(directory / "checkpoint"),
        rollout_batch_size=GROUPS,
        n_samples_per_prompt=SAMPLES,
        eval_prompt_data=["contract", str(rows)],
        agl={"agent": agent, "runners": {"timeout_seconds": 60.0}},
    )

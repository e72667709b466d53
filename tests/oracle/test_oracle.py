"""The short form of `python -m tests.oracle`, and proof that the checker detects faults."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.oracle.direct import run_family
from tests.oracle.families import family
from tests.oracle.through_slime import MODES, run_steps

PROGRAMS = int(os.environ.get("ORACLE_PROGRAMS", "12"))
# One of each way to write a turn: closers, openers that stop, a template that looks back, one that drops reasoning, one
# that takes a single system message.
FAMILIES = ("tiny", "smollm2", "qwen3", "qwen3.6", "deepseek-v3", "glm4.5", "mistral-nemo")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_trained_token_is_the_one_that_the_engine_sampled_at_that_place(name):
    found = asyncio.run(run_family(family(name), range(PROGRAMS), seed=7))
    assert found.faults == []
    assert found.trained > 0.9 * found.sampled > 20 * PROGRAMS


@pytest.mark.parametrize("mode", MODES)
def test_what_slime_gets_is_what_the_engine_sampled_for_that_execution(mode):
    found = run_steps(mode, steps=3, seed=7)
    assert found.faults == []
    assert found.trained > 1000

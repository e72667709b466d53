"""Prompt scores of the local engine, through the client of a teacher, against teacher forcing and its own sampling."""

from __future__ import annotations

import asyncio

import pytest
from local_helpers import ByteTokenizer, tiny_model

from slime_agl.engine.scorer import Probe, Scorer
from slime_agl.errors import TeacherError
from slime_agl.local.engine.router import start_router
from slime_agl.local.engine.score import teacher_logprobs
from slime_agl.local.engine.server import EngineThread
from slime_agl.local.engine.transformers_backend import TransformersBackend

IDS = [72, 101, 108, 108, 111, 256, 7, 299, 0, 44, 31]
TEXT = "Hello, world"
PROBE = Probe(text=TEXT, ids=tuple(TEXT.encode()), context=1000)


@pytest.fixture(scope="module")
def engine():
    with EngineThread(TransformersBackend(tiny_model(), ByteTokenizer())) as running:
        yield running


def scored(url: str, sequences: list[tuple[list[int], int]]) -> list[list[float]]:
    async def ask() -> list[list[float]]:
        scorer = Scorer(url, name="", seconds=20.0)
        try:
            await scorer.prove(PROBE)
            return [list(one) for one in await asyncio.gather(*(scorer.score(*given) for given in sequences))]
        finally:
            await scorer.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("through_router", [False, True])
def test_each_score_is_that_of_its_token_from_the_first_to_the_last(engine, through_router: bool):
    sequences = [(IDS, count) for count in (1, 2, 6, len(IDS) - 1)] + [([5, 6], 1), (IDS * 60, 600)]
    if through_router:
        with start_router([engine.url]) as router:
            found = scored(router.url, sequences)
    else:
        found = scored(engine.url, sequences)
    for (ids, count), scores in zip(sequences, found, strict=True):
        assert scores == pytest.approx(teacher_logprobs(tiny_model(), ids, count), abs=1e-4)


def test_a_token_without_one_before_it_has_no_score(engine):
    with pytest.raises(TeacherError, match="3 of 3 tokens are to be scored; at least one must come before them"):
        scored(engine.url, [([1, 2, 3], 3)])


def test_an_id_beyond_the_teachers_vocabulary_is_refused(engine):
    with pytest.raises(TeacherError, match=r"refuses a Sample of 3 tokens .*contains 300, the vocabulary has 300 ids"):
        scored(engine.url, [([1, 2, 300], 1)])


def test_a_sequence_that_fills_the_teachers_context_is_refused_with_both_numbers(engine):
    with pytest.raises(TeacherError, match=r"refuses a Sample of 2048 tokens .*\(2048 tokens\)"):
        scored(engine.url, [([1] * 2048, 1)])

"""The engine that answers from a record: the right answer to the right request, in the recorded order."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import pytest

from slime_agl.engine.base import EngineInfo, EngineRequest
from slime_agl.engine.id_text import IdText
from slime_agl.errors import EngineFailure, EngineRejected, EngineUnavailable
from slime_agl.rerun.engine import RecordedEngine
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import ABORT, LENGTH, STOP, Media, Sampled, Turn, logprob_array, token_array

PROMPT, OTHER = [1, 2, 3], [1, 2, 9]


def part(*ids: int, finish: str = STOP) -> Sampled:
    return Sampled(ids=token_array(ids), logprobs=logprob_array([-0.5] * len(ids)), finish=finish)


class Book:
    """A ledger, written turn by turn. Each turn begins when it is written, unless `started` says otherwise."""

    def __init__(self) -> None:
        self.ledger = Ledger("ro", "at")

    def turn(self, prompt: list[int], *parts: Sampled, **facts: Any) -> Book:
        index = len(self.ledger.turns)
        facts = {"parent": None, "started": float(index), **facts}
        self.ledger.commit(Turn(index=index, new_ids=token_array(prompt), parts=parts, turn_id="", **facts))
        return self


def engine(*attempts: Ledger, errors: tuple[EngineFailure, ...] = (), **options: Any) -> RecordedEngine:
    made = RecordedEngine(EngineInfo(), **options)
    made.load([(ledger, errors) for ledger in attempts])
    made.next_attempt()
    return made


def ask(made: RecordedEngine, ids: list[int], rid: str = "r", **more: Any) -> Any:
    request = EngineRequest(
        prompt=IdText().extended(array("i", ids)),
        sampling_params={"max_new_tokens": 9},
        rid=rid,
        session_key="s",
        **more,
    )
    return made.generate(request)


async def said(made: RecordedEngine, ids: list[int], rid: str = "r", **more: Any) -> list[int]:
    return list((await ask(made, ids, rid, **more)).ids)


async def test_a_prompt_gets_its_answer_with_all_that_came_with_it():
    answer = Sampled(
        ids=array("i", [7]),
        logprobs=array("d", [-0.25]),
        finish=STOP,
        matched=7,
        prompt_tokens=3,
        cached_tokens=2,
        weight_version="v1",
        meta={"reasoning_tokens": 1},
    )
    assert await ask(engine(Book().turn(PROMPT, answer).ledger), PROMPT) == answer


async def test_a_prompt_is_refused_when_no_answer_to_it_is_left():
    made = engine(Book().turn(PROMPT, part(7)).ledger)
    with pytest.raises(EngineRejected, match="no answer to this prompt of 3 tokens"):
        await ask(made, OTHER)
    await ask(made, PROMPT)
    with pytest.raises(EngineRejected):
        await ask(made, PROMPT)
    assert [(list(one.ids), one.given) for one in made.unrecorded] == [(OTHER, frozenset()), (PROMPT, frozenset({0}))]


async def test_other_images_make_another_prompt():
    made = engine(Book().turn(PROMPT, part(7), media=Media("text", ("data:cat",))).ledger)
    with pytest.raises(EngineRejected):
        await ask(made, PROMPT, extra={"image_data": ("data:dog",)})
    assert await said(made, PROMPT, extra={"image_data": ("data:cat",)}) == [7]


async def test_equal_prompts_are_answered_in_the_order_in_which_they_were_asked():
    book = Book().turn(PROMPT, part(7), started=2.0).turn(PROMPT, part(8), started=1.0)
    made = engine(book.ledger)
    first, second = await asyncio.gather(said(made, PROMPT, "a"), said(made, PROMPT, "b"))
    assert (first, second) == ([8], [7])


async def test_equal_prompts_of_several_models_are_told_apart():
    book = Book().turn(PROMPT, part(7), model="one").turn(PROMPT, part(8), model="two")
    made = engine(book.ledger)
    second, first = await asyncio.gather(said(made, PROMPT, "b", model="two"), said(made, PROMPT, "a", model="one"))
    assert (first, second) == ([7], [8])


async def test_answers_leave_in_the_recorded_order():
    made = engine(Book().turn(PROMPT, part(7)).turn(OTHER, part(8)).turn([5], part(9)).ledger)
    left: list[int] = []

    async def one(ids: list[int]) -> None:
        left.extend(await said(made, ids, str(ids)))

    late = [asyncio.ensure_future(one(ids)) for ids in ([5], OTHER)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert left == []
    await one(PROMPT)
    await asyncio.gather(*late)
    assert left == [7, 8, 9]


async def test_the_order_is_given_up_for_an_agent_that_leaves_a_turn_out():
    made = engine(Book().turn(PROMPT, part(7)).turn(OTHER, part(8)).ledger, patience=0.0)
    assert await said(made, OTHER) == [8]
    assert [turn.index for turn in made.scripts[0].missing()] == [0]


async def test_an_aborted_request_that_waits_for_its_turn_ends_with_nothing():
    made = engine(Book().turn(PROMPT, part(7)).turn(OTHER, part(8)).ledger)
    waiting = asyncio.ensure_future(ask(made, OTHER, "w"))
    await asyncio.sleep(0)
    await made.abort("w")
    answer = await waiting
    assert (list(answer.ids), answer.finish) == ([], ABORT)


async def test_a_turn_that_aborts_had_cut_comes_in_its_pieces():
    pieces = (part(7, 8, finish=ABORT), part(finish=ABORT), part(9, finish=ABORT), part(finish=LENGTH))
    made = engine(Book().turn(PROMPT, *pieces).turn([4], part(5), parent=0).ledger)
    assert await said(made, PROMPT) == [7, 8]
    assert await said(made, [*PROMPT, 7, 8]) == [9]
    assert (await ask(made, [*PROMPT, 7, 8, 9])).finish == LENGTH
    assert await said(made, [*PROMPT, 7, 8, 9, 4]) == [5]
    assert made.scripts[0].missing() == []


async def test_a_turn_that_began_anew_does_so_again():
    book = Book().turn(PROMPT, part(7, finish=ABORT), untrained="restarted", started=0.0)
    made = engine(book.turn(PROMPT, part(8), started=0.0).ledger)
    assert [await said(made, PROMPT), await said(made, PROMPT)] == [[7], [8]]


@pytest.mark.parametrize("reason", ["abandoned", "sealed"])
async def test_what_the_agent_did_not_wait_for_stays_away_until_it_leaves(reason: str):
    made = engine(Book().turn(PROMPT, part(7), untrained=reason).turn(OTHER, part(8)).ledger)
    pending = asyncio.ensure_future(ask(made, PROMPT, "gone"))
    assert await said(made, OTHER) == [8]
    for _ in range(50):
        await asyncio.sleep(0)
    assert not pending.done()
    await made.abort("gone")
    assert list((await pending).ids) == [7]


async def test_the_engine_fails_where_it_failed():
    book = Book().turn(PROMPT, part(7, finish=ABORT), untrained="engine_error")
    failures = (EngineFailure("worker lost"), EngineFailure("HTTP 400: no such parameter", rejected=True))
    made = engine(book.ledger, errors=failures)
    with pytest.raises(EngineUnavailable, match="worker lost"):
        await ask(made, PROMPT)
    with pytest.raises(EngineRejected, match="no such parameter"):
        await ask(made, OTHER)
    assert made.unrecorded == []


async def test_each_attempt_has_answers_of_its_own():
    made = engine(Book().turn(PROMPT, part(7)).ledger, Book().turn(PROMPT, part(8)).ledger)
    first = await said(made, PROMPT)
    made.next_attempt()
    assert (first, await said(made, PROMPT)) == ([7], [8])
    assert (made.given, made.attempts) == (2, 2)

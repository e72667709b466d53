"""Turns become spans that Agent Lightning's own adapters read."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import Sampled, Turn, logprob_array, token_array


def sampled(ids: list[int], *, finish: str = "stop", version: str = "3", cached: int = 0) -> Sampled:
    return Sampled(
        ids=token_array(ids),
        logprobs=logprob_array([-0.5 * (place + 1) for place in range(len(ids))]),
        finish=finish,
        cached_tokens=cached,
        weight_version=version,
    )


def commit(ledger: Ledger, parent: int | None, new_ids: list[int], *parts: Sampled, at: float, **more) -> Turn:
    index = len(ledger.turns)
    turn = Turn(
        index=index,
        parent=parent,
        new_ids=token_array(new_ids),
        parts=parts,
        turn_id=f"chatcmpl-{index}",
        model="policy",
        started=at,
        ended=at + 0.5,
        **more,
    )
    return ledger.commit(turn)


def committing_agent(made_ref: list, turns):
    """An agent whose model calls are committed from another thread, as a gateway does."""

    async def agent(task, llm, rollout):
        ledger = Ledger(rollout.rollout_id, rollout.attempt.attempt_id)

        def send(turn: Turn) -> None:
            service = made_ref[0].service
            thread = threading.Thread(
                target=service.sink.turn_committed, args=(ledger.rollout_id, ledger.attempt_id, turn, ledger)
            )
            thread.start()
            thread.join()

        return await turns(ledger, send)

    return agent


async def three_turns_two_rewards(ledger: Ledger, send) -> float:
    from agentlightning import emit_reward

    send(commit(ledger, None, [1, 2, 3], sampled([10, 11]), at=time.time() - 0.5))
    emit_reward(0.25)
    cut, rest = sampled([12], finish="abort"), sampled([13, 14], version="4", cached=5)
    send(commit(ledger, 0, [4, 5], cut, rest, at=time.time() - 0.5))
    long = sampled([20], finish="length")
    send(commit(ledger, None, [1, 9], long, at=time.time() - 0.5, fork="system prompt changed"))
    return 1.0


async def test_light_spans_carry_counts_and_stand_where_they_happened(bench) -> None:
    ref: list = []
    ref.append(await bench(committing_agent(ref, three_turns_two_rewards)))
    outcome = (await ref[0].run({})).final

    assert [span.name for span in outcome.spans] == [
        "openai.chat.completion",
        "agentlightning.annotation",
        "openai.chat.completion",
        "openai.chat.completion",
        "agentlightning.annotation",
    ]
    assert [span.sequence_id for span in outcome.spans] == [1, 2, 3, 4, 5]
    attributes = outcome.spans[2].attributes
    assert attributes["gen_ai.response.id"] == "chatcmpl-1"
    assert attributes["gen_ai.request.model"] == "policy"
    assert attributes["gen_ai.usage.prompt_tokens"] == 7
    assert attributes["gen_ai.usage.completion_tokens"] == 3
    assert attributes["slime_agl.turn.weight_versions"] == ["3", "4"]
    assert (attributes["slime_agl.turn.index"], attributes["slime_agl.turn.parent"]) == (1, 0)
    assert outcome.spans[3].attributes["slime_agl.turn.fork"] == "system prompt changed"
    assert outcome.spans[2].end_time - outcome.spans[2].start_time == pytest.approx(0.5)
    assert not any("token_ids" in name for span in outcome.spans for name in span.attributes)
    stored = await ref[0].store.query_spans(outcome.rollout_id, outcome.attempt_id)
    assert list(stored) == list(outcome.spans)


async def test_the_triplet_adapter_finds_exactly_the_tokens_and_rewards(bench) -> None:
    from agentlightning.adapter import TracerTraceToTriplet

    ref: list = []
    made = await bench(committing_agent(ref, three_turns_two_rewards), tokens=True)
    ref.append(made)
    outcome = (await made.run({})).final

    triplets = TracerTraceToTriplet().adapt(list(outcome.spans))
    assert [(t.prompt["token_ids"], t.response["token_ids"]) for t in triplets] == [
        ([1, 2, 3], [10, 11]),
        ([1, 2, 3, 10, 11, 4, 5], [12, 13, 14]),
        ([1, 9], [20]),
    ]
    assert [t.reward for t in triplets] == [0.25, None, 1.0]
    assert [t.metadata["response_id"] for t in triplets] == ["chatcmpl-0", "chatcmpl-1", "chatcmpl-2"]
    assert [entry["logprob"] for entry in triplets[1].response["logprobs"]] == [-0.5, -0.5, -1.0]
    json.dumps([span.model_dump() for span in outcome.spans])


async def test_a_long_attempt_is_written_while_it_runs(bench) -> None:
    ref: list = []
    halfway, go = asyncio.Event(), asyncio.Event()

    async def many_turns(ledger: Ledger, send) -> float:
        for n in range(150):
            send(commit(ledger, n - 1 if n else None, [n], sampled([1000 + n]), at=float(n)))
        halfway.set()
        await go.wait()
        return 0.0

    ref.append(await bench(committing_agent(ref, many_turns)))
    running = asyncio.create_task(ref[0].run({}))
    await halfway.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await ref[0].service.metrics())["store/spans"] > 0
    go.set()
    outcome = (await running).final
    turns = [span.attributes["slime_agl.turn.index"] for span in outcome.spans[:-1]]
    assert turns == list(range(150))


async def test_a_turn_of_no_running_attempt_is_dropped_and_counted(bench) -> None:
    async def agent(task, llm): ...

    made = await bench(agent)
    ledger = Ledger("ro-gone", "at-gone")
    made.service.sink.turn_committed("ro-gone", "at-gone", commit(ledger, None, [1], sampled([2]), at=0.0), ledger)
    assert (await made.service.metrics())["spans_dropped"] == 1

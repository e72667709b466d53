"""Replay data from the engine to slime's Sample: each trained token keeps its routed experts and top-p set."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import agentlightning as agl
import aiohttp
import openai
import pytest

from slime_agl.errors import AgentError, InvariantError
from slime_agl.executor.replay import require_replay
from slime_agl.host import RolloutArgs, Sample, default_args
from slime_agl.local.engine.router import start_router
from slime_agl.testing import FakeReplay, FakeSGLang, tool_agent
from tests.conftest import flat

REPLAY = FakeReplay()
ARGS: dict[str, Any] = {
    "use_rollout_routing_replay": True,
    "num_layers": REPLAY.layers,
    "moe_router_topk": REPLAY.choices,
    "rollout_top_p": 0.9,
}


@pytest.fixture
def engine(fake_sglang: FakeSGLang) -> FakeSGLang:
    fake_sglang.replay = REPLAY
    return fake_sglang


def faults(output: Any, **which: bool) -> list[str]:
    return [fault for sample in flat(output.samples) for fault in REPLAY.faults(sample, **which)]


@agl.rollout
async def wanders(task: Any, llm: Any) -> float:
    """Talks, goes back and says something else, talks on, and starts anew."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:

        async def ask(*messages: Any) -> list[Any]:
            answer = await ai.chat.completions.create(model="m", messages=list(messages))
            return [*messages, answer.choices[0].message.model_dump(exclude_none=True)]

        first = await ask({"role": "user", "content": task["prompt"]})
        left = await ask(*first, {"role": "user", "content": "left"})
        await ask(*first, {"role": "user", "content": "right, and further"})
        await ask(*left, {"role": "user", "content": "on"})
        await ask({"role": "user", "content": "anew"})
    return 1.0


def test_branches_and_turns_are_aligned(engine, run_rollout, token_exact):
    engine.answer_with(lambda request: f"answer to {len(request.input_ids)} tokens")
    output = run_rollout(wanders, ["a", "bcd"], n_samples=2, **ARGS)
    samples = flat(output.samples)
    assert len(samples) == 12 and faults(output) == []
    token_exact(engine, output.samples)
    shared = [sample for sample in samples if 0 in sample.loss_mask and len(sample.tokens) > sample.response_length]
    assert shared, "no sample has glue"
    starts = sorted({request.json["routed_experts_start_len"] for request in engine.requests})
    assert starts[0] == 0 and len(starts) > 2


def test_a_turn_within_a_segment_that_does_not_train_is_aligned(engine, run_rollout, token_exact):
    @agl.rollout
    async def alternates(task: Any, llm: Any) -> float:
        talk: list[Any] = []
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            for model in ("m", "other", "m"):
                talk.append({"role": "user", "content": f"{task['prompt']} {model}"})
                answer = await ai.chat.completions.create(model=model, messages=talk)
                talk.append(answer.choices[0].message.model_dump(exclude_none=True))
        return 1.0

    engine.answer_with(lambda request: f"answer to {len(request.input_ids)} tokens")
    output = run_rollout(alternates, ["a"], agl={"train": {"except_model": "other"}}, **ARGS)
    (sample,) = flat(output.samples)
    assert faults(output) == []
    token_exact(engine, output.samples)
    assert sum(sample.loss_mask) == output.metrics["rollout/agl/trained_tokens"]
    spans = sample.metadata["agl"]["weight_versions"]
    assert sum(end - start for start, end, _ in spans) == sum(sample.loss_mask)


def test_tool_calls_under_routed_experts_alone_and_top_p_alone(engine, run_rollout):
    for chosen in ({"rollout_top_p": 0.9}, {name: ARGS[name] for name in ARGS if name != "rollout_top_p"}):
        engine.call_tool("add", {"a": 1, "b": 2}).say("3")
        output = run_rollout(tool_agent(), ["1 + 2?"], **chosen)
        assert faults(output, top_p="rollout_top_p" in chosen, experts="num_layers" in chosen) == []
        ((sample,),) = output.samples
        assert (sample.rollout_routed_experts is None) == ("num_layers" not in chosen)
        assert (sample.rollout_top_p_token_ids is None) == ("rollout_top_p" not in chosen)


def test_a_turn_cut_by_a_weight_update_is_aligned_piece_by_piece(engine, run_rollout):
    @agl.rollout
    async def cut(task: Any, llm: Any) -> float:
        """Its first turn is aborted twice at the engine, after three tokens and then before any."""
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            call = asyncio.ensure_future(
                ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
            )
            async with aiohttp.ClientSession() as http:
                for count, partial in ((1, 3), (2, 0)):
                    await engine.requests_arrived(count)
                    engine.abort_partial(partial)
                    engine.weight_version = str(count + 1)
                    async with http.post(f"{engine.url}/abort_request", json={"abort_all": True}):
                        pass
            engine.release()
            await call
        return 1.0

    engine.hold().say("a long answer that is cut")
    output = run_rollout(cut, ["x"], **ARGS)
    ((sample,),) = output.samples
    assert faults(output) == [] and sum(sample.loss_mask) == sample.response_length > 3
    assert [request.json["routed_experts_start_len"] for request in engine.requests] == [
        0,
        *[len(engine.requests[0].input_ids) + 2] * 2,
    ]
    assert sample.weight_versions == ["2", "3"], "the second abort came before any token"


def test_executions_that_fail_leave_what_slimes_batch_needs(engine, run_rollout):
    engine.answer_with(lambda request: "ok")

    @agl.rollout
    async def fails_after(task: Any, llm: Any) -> float:
        if "!" in task["prompt"]:
            raise RuntimeError("as told")
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": task["prompt"]}])
            if task["prompt"] == "first" and not fails_after.failed:
                fails_after.failed = True
                raise RuntimeError("as told")
        return 1.0

    fails_after.failed = False
    output = run_rollout(fails_after, ["first", "second"], n_samples=2, **ARGS)
    samples = flat(output.samples)
    assert sum(sample.remove_sample for sample in samples) == 1
    assert all(len(sample.rollout_routed_experts) == len(sample.tokens) - 1 for sample in samples)
    assert all(len(sample.rollout_top_p_token_offsets) == sample.response_length + 1 for sample in samples)


def test_an_evaluation_asks_for_nothing_to_replay(engine, run_rollout):
    engine.answer_with(lambda request: "ok")
    output = run_rollout(wanders, ["a"], evaluation=True, **ARGS)
    (sample,) = output.data["rows"]["samples"]
    assert sample.rollout_routed_experts is None and sample.rollout_top_p_token_ids is None
    assert not any("return_routed_experts" in request.json for request in engine.requests)


def test_replay_data_that_stops_coming_is_the_engines_failure_and_trains_nothing(engine, run_rollout, monkeypatch):
    monkeypatch.setattr("slime_agl.engine.retry.Backoff.pause", lambda *_: 0.0)

    def forgets(request: Any) -> str:
        engine.replay = None
        return "ok"

    engine.answer_with(forgets)
    with pytest.raises(AgentError, match="has no routed experts although it was asked for them"):
        run_rollout(wanders, ["a"], **ARGS)


def test_a_sample_without_what_slime_replays_is_a_crash():
    args = RolloutArgs.read(default_args(**ARGS))
    with pytest.raises(InvariantError, match="sample 7 of 2 tokens has no top-p token sets .* and no routed experts"):
        require_replay(args, Sample(index=7, tokens=[1, 2]))


def test_replay_data_arrives_past_the_real_router(run_rollout, tmp_path, caplog):
    pytest.importorskip("sglang_router", reason="the router's wheel is not installed")
    with ExitStack() as stack:
        fakes = [stack.enter_context(FakeSGLang(replay=REPLAY)) for _ in range(2)]
        for fake in fakes:
            fake.answer_with(lambda request: f"answer to {len(request.input_ids)} tokens")
        router = stack.enter_context(start_router([f.url for f in fakes], policy="manual", log=tmp_path / "router.log"))
        host, port = router.url.removeprefix("http://").split(":")
        output = run_rollout(
            wanders, ["a", "bcd", "e"], n_samples=2, sglang_router_ip=host, sglang_router_port=int(port), **ARGS
        )
        assert faults(output) == [] and len(flat(output.samples)) == 18
        assert "requests go to its 2 workers directly" in caplog.text
        sessions = [{request.headers["x-smg-routing-key"] for request in fake.requests} for fake in fakes]
        assert not sessions[0] & sessions[1], "an execution's turns went to two workers"

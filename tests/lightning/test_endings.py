"""How attempts end, what is reported, and in which order the session is told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anthropic
import httpx
import openai
import pytest

from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.lightning import attempts
from slime_agl.lightning._agl import get_active_tracer
from slime_agl.lightning.failures import refusal_code
from slime_agl.lightning.service import Lightning
from tests.lightning.conftest import RecordingSession


async def forever(task, llm):
    await asyncio.get_running_loop().create_future()


async def test_an_agent_gets_its_own_address_and_key(bench) -> None:
    seen = {}

    async def agent(task, llm, rollout):
        llm.sampling_parameters["temperature"] = 0.0
        seen[rollout.attempt.attempt_id] = (llm.endpoint, llm.api_key, llm.model)

    made = await bench(agent)
    outcome = (await made.run({})).final

    rid, aid = outcome.rollout_id, outcome.attempt_id
    assert seen[aid] == (f"http://gateway:1/rollout/{rid}/attempt/{aid}/v1", f"key-{rid}-{aid}", "policy")
    assert made.session.events == [("open", rid, aid), ("seal", rid, aid)]
    published = await made.store.get_resources_by_id(made.resources_id)
    assert published.resources["main_llm"].sampling_parameters == {"temperature": 1.0}


async def test_a_class_agent_finds_its_address_and_key_in_the_resources(bench, caplog) -> None:
    from agentlightning import LitAgent

    class Agent(LitAgent):
        def rollout(self, task, resources, rollout):
            llm = resources["main_llm"]
            address = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
            assert address.endswith(f"/rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}/v1")
            assert llm.api_key == f"key-{rollout.rollout_id}-{rollout.attempt.attempt_id}"

    made = await bench(Agent)
    assert [(await made.run({})).final.error for _ in range(3)] == [None] * 3
    assert caplog.records == []


async def test_further_models_and_templates_stand_beside_the_trained_model(bench, caplog) -> None:
    async def agent(task, llm, prompt_template):
        assert (llm.model, prompt_template.format(name="you")) == ("policy", "hello you")

    made = await bench(agent, templates={"greeting": "hello {name}"}, frozen={"judge": "http://judge:1/v1"})
    runs = [made.run({}) for _ in range(3)]
    assert [outcome.final.error for outcome in await asyncio.gather(*runs)] == [None] * 3
    # What upstream says about several models is said once, not once per attempt.
    assert [record.name for record in caplog.records] == ["agentlightning.litagent.decorator"]


@pytest.mark.parametrize("returned, reward", [(None, None), (1, 1.0), (True, 1.0), (0.25, 0.25), ([], None)])
async def test_what_an_agent_may_return(bench, returned, reward) -> None:
    async def agent(task, llm):
        return returned

    outcome = await (await bench(agent)).run({})
    assert (outcome.final.status, outcome.final.reward) == ("succeeded", reward)


async def test_returned_spans_belong_to_the_attempt_that_returned_them(bench) -> None:
    from agentlightning import emit_message, emit_reward
    from agentlightning.types import Span

    async def agent(task, llm):
        emit_message("before")
        if task["kind"] == "core":
            return [emit_reward(0.5, propagate=False)]
        core = emit_reward(0.5, propagate=False)
        return [Span.from_core_fields(core, rollout_id="other", attempt_id="other", sequence_id=99)]

    made = await bench(agent)
    for kind in ("core", "span"):
        outcome = (await made.run({"kind": kind})).final
        assert outcome.reward == 0.5
        assert [(s.rollout_id, s.attempt_id, s.sequence_id) for s in outcome.spans] == [
            (outcome.rollout_id, outcome.attempt_id, 1),
            (outcome.rollout_id, outcome.attempt_id, 2),
        ]


async def test_a_value_that_is_no_reward_fails_the_attempt_with_the_runners_words(bench) -> None:
    async def agent(task, llm):
        return "great"

    outcome = (await (await bench(agent)).run({})).final
    assert (outcome.status, outcome.error_type) == ("failed", "TypeError")
    assert "but got: str" in outcome.error


async def test_a_failure_is_reported_from_the_agents_own_frame_on(bench) -> None:
    async def agent(task, llm):
        raise LookupError("no such tool")

    outcome = (await (await bench(agent)).run({})).final
    assert (outcome.status, outcome.error_type) == ("failed", "LookupError")
    lines = outcome.error.splitlines()
    assert "in agent" in lines[1] and lines[-1] == "LookupError: no such tool"


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    "raised", [SystemExit(2), asyncio.CancelledError(), StopIteration(), BaseExceptionGroup("g", [SystemExit()])]
)
async def test_whatever_an_agent_raises_ends_its_attempt_and_nothing_else(bench, raised, blocking) -> None:
    async def agent(task, llm):
        raise raised

    def blocking_agent(task, llm):
        raise raised

    made = await bench(blocking_agent if blocking else agent)
    outcome = (await made.run({})).final
    assert outcome.status == "failed"
    assert outcome.error_type in (type(raised).__name__, "RuntimeError")
    assert made.session.events[-1][0] == "seal"


async def test_failures_are_tried_again_and_all_attempts_are_told(bench) -> None:
    tries: dict[int, int] = {}

    async def agent(task, llm):
        tries[task["n"]] = tries.get(task["n"], 0) + 1
        if tries[task["n"]] < 3:
            raise RuntimeError(f"try {tries[task['n']]}")
        return float(task["n"])

    made = await bench(agent, max_attempts=3, max_concurrency=4)
    outcomes = await asyncio.gather(*(made.run({"n": n}) for n in range(12)))

    for n, outcome in enumerate(outcomes):
        assert [attempt.status for attempt in outcome.attempts] == ["failed", "failed", "succeeded"]
        assert outcome.final.reward == float(n)
        assert len({attempt.attempt_id for attempt in outcome.attempts}) == 3
        assert (await made.store.get_rollout_by_id(outcome.rollout_id)).status == "succeeded"


async def test_attempts_that_are_used_up_leave_a_failed_rollout(bench) -> None:
    async def agent(task, llm):
        raise RuntimeError("always")

    made = await bench(agent, max_attempts=2)
    outcome = await made.run({})
    assert len(outcome.attempts) == 2
    held = await made.store.get_rollout_by_id(outcome.rollout_id)
    assert (held.status, held.attempt.status) == ("failed", "failed")
    assert held.attempt.metadata["error_type"] == "RuntimeError"


async def test_what_each_attempt_left_when_it_was_sealed_is_in_its_outcome(bench) -> None:
    async def agent(task, llm):
        raise RuntimeError("again")

    made = await bench(agent, max_attempts=2)
    attempts = (await made.run({})).attempts
    assert [attempt.sealed for attempt in attempts] == [f"left by {attempt.attempt_id}" for attempt in attempts]
    assert len({attempt.sealed for attempt in attempts}) == 2


async def test_whether_to_try_again_is_asked_of_what_the_attempt_left(bench) -> None:
    asked: list[tuple[str, str]] = []

    class Once(RecordingSession):
        def may_retry(self, sealed, status, error_type):
            asked.append((sealed, status))
            return len(asked) < 2

    async def agent(task, llm):
        raise RuntimeError("again")

    made = await bench(agent, session=Once(), max_attempts=5)
    attempts = (await made.run({})).attempts
    assert asked == [(attempt.sealed, "failed") for attempt in attempts] and len(attempts) == 2


async def test_a_rollout_may_have_fewer_tries_than_the_pool_allows_and_never_more(bench) -> None:
    async def agent(task, llm):
        raise RuntimeError("again")

    made = await bench(agent, max_attempts=2)
    assert [len((await made.run({}, max_attempts=most)).attempts) for most in (1, 2, 3)] == [1, 2, 2]


@pytest.mark.parametrize("mode", ["auto", "thread"])
async def test_a_deadline_seals_first_then_cancels(bench, mode) -> None:
    order: list[str] = []
    gone = threading.Event()

    class Session:
        def began(self): ...

        async def open(self, rollout_id, attempt_id):
            return "key"

        async def seal(self, rollout_id, attempt_id):
            order.append("seal")

        def may_retry(self, sealed, status, error_type):
            return False

    async def agent(task, llm):
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            order.append("cancel")
            gone.set()
            raise

    made = await bench(agent, session=Session(), timeout_seconds=0.02, mode=mode)
    outcome = await made.run({})
    await asyncio.to_thread(gone.wait, 10)
    assert (outcome.final.status, outcome.final.error_type) == ("timeout", "TimeoutError")
    assert "0.02 s" in outcome.final.error
    assert order == ["seal", "cancel"]
    held = await made.store.get_rollout_by_id(outcome.rollout_id)
    assert (held.status, held.attempt.status) == ("failed", "timeout")


async def test_a_blocked_thread_is_left_behind_and_counted(bench) -> None:
    release, ended = threading.Event(), threading.Event()

    def agent(task, llm):
        from agentlightning import emit_reward

        release.wait(30)
        emit_reward(1.0)
        ended.set()

    made = await bench(agent, timeout_seconds=0.02)
    outcome = await made.run({})
    assert outcome.final.status == "timeout"
    assert (await made.service.metrics())["abandoned_threads"] == 1

    release.set()
    await asyncio.to_thread(ended.wait, 10)
    assert (await made.service.metrics())["spans_dropped"] == 1
    assert outcome.final.spans == ()


async def test_an_agent_that_ignores_its_cancellation_does_not_hold_the_slot(bench, monkeypatch) -> None:
    monkeypatch.setattr(attempts, "CANCEL_GRACE_SECONDS", 0.02)
    stubborn = asyncio.Event()

    async def agent(task, llm):
        while not stubborn.is_set():
            try:
                await stubborn.wait()
            except asyncio.CancelledError:
                continue
        return 1.0

    made = await bench(agent, timeout_seconds=0.02, max_concurrency=1)
    first = await made.run({})
    second = await made.run({})
    assert (first.final.status, second.final.status) == ("timeout", "timeout")
    assert (await made.service.metrics())["abandoned_tasks"] == 2
    stubborn.set()


async def test_cancelling_a_run_seals_and_cancels_and_is_not_tried_again(bench) -> None:
    started = asyncio.Event()

    async def agent(task, llm):
        started.set()
        await asyncio.get_running_loop().create_future()

    made = await bench(agent, max_attempts=3)
    running = asyncio.create_task(made.run({}))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    held = await made.store.get_rollout_by_id((await made.queued(1))[0])
    assert (held.status, held.attempt.status) == ("cancelled", "failed")
    assert [event[0] for event in made.session.events] == ["open", "seal"]
    assert (await made.service.metrics())["attempts/cancelled"] == 1


async def test_a_run_that_is_cancelled_twice_still_returns_after_its_session_is_sealed(bench) -> None:
    sealing, go_on, sealed = asyncio.Event(), asyncio.Event(), []

    class Slow(RecordingSession):
        async def seal(self, rollout_id: str, attempt_id: str) -> str:
            sealing.set()
            await go_on.wait()
            sealed.append(attempt_id)
            return await super().seal(rollout_id, attempt_id)

    made = await bench(forever, session=Slow())
    running = asyncio.create_task(made.run({}))
    while not made.session.events:
        await asyncio.sleep(0)
    running.cancel()
    await sealing.wait()
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0.01)
    early = running.done()
    go_on.set()
    assert not early
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(sealed) == 1
    assert [rollout.status for rollout in await made.store.query_rollouts()] == ["cancelled"]


async def test_cancelling_a_run_that_still_waits_takes_it_from_the_queue(bench, caplog) -> None:
    first_started = asyncio.Event()

    async def agent(task, llm):
        if task["n"] == 0:
            first_started.set()
            await asyncio.get_running_loop().create_future()
        return float(task["n"])

    made = await bench(agent, max_concurrency=1)
    runs = [asyncio.create_task(made.run({"n": n})) for n in range(4)]
    await first_started.wait()
    ids = await made.queued(4)
    runs[1].cancel()
    runs[0].cancel()
    results = await asyncio.gather(*runs, return_exceptions=True)

    assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, True, False, False]
    assert [result.final.reward for result in results[2:]] == [2.0, 3.0]
    assert (await made.store.get_rollout_by_id(ids[1])).status == "cancelled"
    assert caplog.records == []


async def test_an_error_of_the_session_is_the_callers_and_frees_the_slot(bench) -> None:
    class Broken:
        def began(self): ...

        async def open(self, rollout_id, attempt_id):
            raise OSError("no socket")

        async def seal(self, rollout_id, attempt_id): ...

    made = await bench(forever, session=Broken(), max_concurrency=1, max_attempts=3)
    for _ in range(2):
        with pytest.raises(OSError, match="no socket"):
            await made.run({})


async def test_closing_cancels_what_runs_and_refuses_what_comes(bench) -> None:
    made = await bench(forever, max_concurrency=1)
    runs = [asyncio.create_task(made.run({})) for _ in range(2)]
    while not made.session.events:
        await asyncio.sleep(0)
    await made.service.close()

    running, waiting = await asyncio.gather(*runs, return_exceptions=True)
    assert running.final.status == "cancelled"
    assert isinstance(waiting, SlimeAglError) and "withdrawn" in str(waiting)
    with pytest.raises(SlimeAglError, match="closed"):
        await made.run({})


def test_a_loop_that_shuts_down_seals_what_runs_and_does_not_hang() -> None:
    sealed: list[str] = []

    class Session:
        def began(self): ...

        async def open(self, rollout_id, attempt_id):
            return "key"

        async def seal(self, rollout_id, attempt_id):
            sealed.append(rollout_id)

    service = Lightning(forever, mode="auto", max_concurrency=1, timeout_seconds=None, max_attempts=2)
    kept = []

    async def main() -> None:
        await service.start()
        resources_id = await service.publish(0, endpoint="http://h:1/v1", model="m", sampling_parameters={})
        kept.extend(
            asyncio.create_task(service.run({}, lane="train", resources_id=resources_id, port=Session()))
            for _ in range(2)
        )
        while (await service.metrics())["store/rollouts"] < 2:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert len(sealed) == 1 and all(task.done() for task in kept)
    asyncio.run(service.close())
    assert get_active_tracer() is None


async def test_a_blocking_agent_is_refused_in_async_mode(bench) -> None:
    def agent(task, llm): ...

    with pytest.raises(ConfigError, match="'async' but the agent is not"):
        await bench(agent, mode="async")


async def test_validation_rollouts_reach_the_validation_method_in_every_mode(bench) -> None:
    from agentlightning import LitAgent

    class Sync(LitAgent):
        def training_rollout(self, task, resources, rollout):
            return 1.0

        def validation_rollout(self, task, resources, rollout):
            return 2.0

    class Async(LitAgent):
        async def training_rollout_async(self, task, resources, rollout):
            return 1.0

        async def validation_rollout_async(self, task, resources, rollout):
            return 2.0

    for agent, mode in ((Sync, "auto"), (Async, "async"), (Async, "thread")):
        made = await bench(agent, mode=mode)
        rewards = [(await made.run({}, mode=kind)).final.reward for kind in ("train", "val")]
        assert rewards == [1.0, 2.0]
        await made.service.close()


async def test_a_thousand_failures_are_three_lines_of_log(bench, caplog) -> None:
    async def agent(task, llm):
        raise ValueError("broken agent")

    made = await bench(agent, max_concurrency=50)
    await asyncio.gather(*(made.run({}) for _ in range(1000)))

    assert (await made.service.metrics())["attempts/failed"] == 1000
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 4 and "ValueError: broken agent" in messages[0]
    assert messages[1:] == [f"{n} attempts have ended as failed, ValueError" for n in (10, 100, 1000)]


def refused(client: Any, body: Any) -> Exception:
    request = httpx.Request("POST", "http://gateway:1/v1")
    return client.BadRequestError("refused", response=httpx.Response(400, request=request), body=body)


def test_the_code_of_a_refused_call_is_found_behind_what_an_agent_makes_of_it() -> None:
    code = "context_length_exceeded"
    openais = refused(openai, {"code": code, "message": "too long"})
    anthropics = refused(anthropic, {"type": "error", "error": {"type": "invalid_request_error", "code": code}})
    for error in (openais, anthropics):
        wrapped = RuntimeError("my framework gives up")
        wrapped.__cause__ = error
        assert (refusal_code(error), refusal_code(wrapped)) == (code, code)
    assert refusal_code(ValueError(f"nothing but the word {code}")) == ""
    loop = ValueError("its own cause")
    loop.__cause__ = loop
    assert refusal_code(loop) == ""

"""agl.async: agents keep working between steps and through weight updates."""

from __future__ import annotations

import json
import threading
from typing import Any

import agentlightning as agl
import httpx
import openai
import pytest

from slime_agl.errors import ConfigError, HostError, RewardError
from slime_agl.rollout import generate, shutdown
from slime_agl.testing.agents import chat_agent, sync_agent
from tests.conftest import flat

ASYNC = {"async": {"enabled": True, "max_staleness": 1}}
ANSWER = "one two three four five six"
ROWS = [f"row {number}" for number in range(64)]


def prompts(output: Any) -> list[str]:
    return [sample.prompt for sample in flat(output.samples)]


def test_steps_deliver_each_group_once_and_stay_ahead(fake_sglang, steps, token_exact):
    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(chat_agent(turns=2), ROWS, agl=ASYNC, rollout_batch_size=3, n_samples_per_prompt=2, num_rollout=5)
    outputs = [run(number) for number in range(5)]
    delivered = [sample.index for output in outputs for sample in flat(output.samples)]
    assert len(delivered) == len(set(delivered)) == 5 * 3 * 2
    assert len(run.source.taken) == 15 and run.source.returned == [] and run.under_way == []
    ages = [output.metrics["rollout/agl/async/staleness_max"] for output in outputs]
    assert ages[0] == 0 and max(ages) <= 1
    metrics = outputs[2].metrics
    names = {"staleness_mean", "queue_depth", "under_way", "idle_seconds", "wait_seconds"}
    assert {f"rollout/agl/async/{name}" for name in names} <= set(metrics)
    token_exact(fake_sglang, [sample for output in outputs for sample in flat(output.samples)])


def test_agents_work_while_the_trainer_trains(fake_sglang, steps):
    """After step 0 the groups of step 1 go on; when slime asks for it, they need no engine any more."""
    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(chat_agent(), ROWS, agl=ASYNC, rollout_batch_size=2, num_rollout=2)
    run(0)
    fake_sglang.wait_for_requests(4)
    fake_sglang.wait_until_idle()
    fake_sglang.hold()
    assert prompts(run(1)) == ["row 2", "row 3"]
    assert len(fake_sglang.requests) == 4


def test_a_group_that_waits_for_room_does_not_get_older(fake_sglang, steps):
    """One execution at a time: each group begins one step before it is delivered, however long ago it was admitted."""
    fake_sglang.answer_with(lambda request: ANSWER).hold()
    far = {"async": {"enabled": True, "max_staleness": 2}, "runners": {"max_concurrency": 1}}
    run = steps(chat_agent(), ROWS, agl=far, rollout_batch_size=1, num_rollout=9)
    fetch, helpers = run.source.get_samples, []

    def release(number: int) -> None:
        fake_sglang.wait_for_requests(number)
        fake_sglang.release(1)

    def fetch_and_release(count: int) -> Any:
        helpers.append(threading.Thread(target=release, args=(len(helpers) + 1,)))
        helpers[-1].start()
        return fetch(count)

    run.source.get_samples = fetch_and_release
    outputs = [run(number) for number in range(4)]
    for helper in helpers:
        helper.join()
    assert [output.metrics["rollout/agl/async/staleness_max"] for output in outputs] == [0, 1, 1, 1]


def test_a_weight_update_in_the_middle_of_a_turn_is_gone_through(fake_sglang, steps, token_exact):
    """As slime does it: pause, which aborts what is in flight, new weights, continue."""
    fake_sglang.answer_with(lambda request: ANSWER).abort_partial(3)
    run = steps(chat_agent(), ROWS, agl=ASYNC, rollout_batch_size=1, num_rollout=2)
    fake_sglang.hold()
    helper = threading.Thread(target=lambda: (fake_sglang.wait_for_requests(2), fake_sglang.release(1)))
    helper.start()
    first = run(0)
    helper.join()
    assert fake_sglang.in_flight == 1
    httpx.post(f"{fake_sglang.url}/pause_generation", json={})
    fake_sglang.wait_for_requests(3)  # The rest is asked for, so the first part has arrived with its version.
    fake_sglang.weight_version = "2"
    fake_sglang.release()
    httpx.post(f"{fake_sglang.url}/continue_generation", json={})
    second = run(1)
    ((sample,),) = second.samples
    assert sample.weight_versions == ["1", "2"] and sample.response.startswith(ANSWER)
    assert sample.metadata["start_rollout_id"] == 0 and second.metrics["rollout/agl/continued_turns"] == 1
    token_exact(fake_sglang, [*first.samples, *second.samples])


def test_an_evaluation_takes_place_while_training_agents_hold_every_slot(fake_sglang, steps, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"input": "question", "label": None}) + "\n")

    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        if task["prompt"] == "row 1":
            await fake_sglang.requests_arrived(2)
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            ask = [{"role": "user", "content": task["prompt"]}]
            await ai.chat.completions.create(model="m", messages=ask)
        return 1.0

    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(
        agent,
        ROWS,
        agl=ASYNC,
        rollout_batch_size=1,
        num_rollout=2,
        sglang_server_concurrency=1,
        eval_prompt_data=["rows", str(rows)],
    )
    assert prompts(run(0)) == ["row 0"]
    assert [sample.prompt for sample in run.evaluate(0).data["rows"]["samples"]] == ["question"]
    assert prompts(run(1)) == ["row 1"]


def test_sync_agents_go_on_between_steps_too(fake_sglang, steps, token_exact):
    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(sync_agent(turns=2), ROWS, agl=ASYNC, rollout_batch_size=2, n_samples_per_prompt=2)
    outputs = [run(number) for number in range(3)]
    token_exact(fake_sglang, [sample for output in outputs for sample in flat(output.samples)])


def test_a_step_that_fails_ends_everything_and_puts_it_back(fake_sglang, steps):
    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(chat_agent(reward=None), ROWS, agl=ASYNC, rollout_batch_size=2)
    with pytest.raises(RewardError):
        run(0)
    assert sorted(map(id, run.source.returned)) == sorted(map(id, run.source.taken)) and run.under_way == []
    assert fake_sglang.in_flight == 0


def test_what_is_under_way_when_the_run_ends_goes_back(fake_sglang, steps):
    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(chat_agent(), ROWS, agl=ASYNC, rollout_batch_size=2)
    run(0)
    ahead = run.under_way
    assert ahead == ["row 2", "row 3"]
    shutdown()
    assert [group[0].prompt for group in run.source.returned] == ahead


def test_a_data_source_that_runs_dry_is_used_up_before_it_is_an_error(fake_sglang, steps):
    class Short:
        def __init__(self, source: Any) -> None:
            self.source, self.left = source, 5

        def get_samples(self, count: int) -> list[Any]:
            count, self.left = min(count, self.left), max(0, self.left - count)
            return self.source.get_samples(count)

        def add_samples(self, groups: list[Any]) -> None: ...

    fake_sglang.answer_with(lambda request: ANSWER)
    run = steps(chat_agent(), ROWS, agl=ASYNC, rollout_batch_size=2)
    short = Short(run.source)
    assert [len(generate(run.args, number, short).samples) for number in range(2)] == [2, 2]
    with pytest.raises(HostError, match="1 more are needed for --rollout-batch-size 2"):
        generate(run.args, 2, short)


@pytest.mark.parametrize(
    "overrides, words",
    [({"colocate": True}, "--colocate"), ({"partial_rollout": True}, "choose one of them")],
)
def test_what_async_cannot_go_with_is_refused(steps, overrides: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        steps(chat_agent(), ROWS, agl=ASYNC, **overrides)(0)

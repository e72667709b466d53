"""Runners of other processes: the agent runs there, its turns, rewards and failures arrive here."""

from __future__ import annotations

import pytest

from slime_agl.assemble import current
from slime_agl.config import Config
from slime_agl.errors import AgentError, ConfigError
from slime_agl.rollout import generate
from slime_agl.testing.host import ListDataSource
from slime_agl.testing.tokenizer import tool_call_text
from tests.external.hand import ask, samples, store


def test_agents_of_other_processes_train(fake_sglang, step, runners, token_exact):
    runners("one_turn", 2)
    output = step([f"question {number}" for number in range(6)])
    assert [sample.reward for sample in samples(output)] == [0.5] * 6
    assert token_exact(fake_sglang, output.samples) > 0


def test_the_store_tells_the_same_as_the_samples(fake_sglang, step, runners):
    """Rollouts, attempts, spans and rewards, one for one."""
    runners("emits", 2)
    output = step(["a", "b", "c"])
    found = {rollout.rollout_id: rollout for rollout in ask(store().query_rollouts())}
    assert len(found) == len(samples(output)) == 3
    for sample in samples(output):
        rollout_id = sample.metadata["agl"]["rollout_id"]
        attempts = list(ask(store().query_attempts(rollout_id)))
        spans = list(ask(store().query_spans(rollout_id)))
        turns = [span for span in spans if "slime_agl.turn.index" in span.attributes]
        rewards = [
            span.attributes["agentlightning.reward.0.value"] for span in spans if span.name.endswith("annotation")
        ]
        assert found[rollout_id].status == "succeeded" and [one.status for one in attempts] == ["succeeded"]
        assert rewards == [0.1, 0.2] and sample.reward == 0.2
        assert [span.attributes["slime_agl.turn.index"] for span in turns] == [0, 1]
        assert {span.attempt_id for span in spans} == {attempts[0].attempt_id}
        assert turns[-1].attributes["slime_agl.turn.weight_versions"] == sample.weight_versions[-1:]


def test_rewards_follow_their_turns_by_sequence(fake_sglang, step, runners):
    runners("emits")
    output = step(["a"], agl={"credit": "per_turn"})
    execution = ask(current().finished(samples(output)[0].metadata["agl"]["rollout_id"]))
    assert [(item.reward, item.after) for item in execution.emitted] == [(0.1, 1), (0.2, 2)]


def test_a_failure_is_masked_and_named(fake_sglang, step, runners):
    runners("fails")
    with pytest.raises(AgentError, match=r"agent_error 8(.|\n)*whose log has the traceback"):
        step(["a"], over_sampling_batch_size=8)


def test_an_agent_without_a_call_is_no_work(fake_sglang, step, runners):
    runners("calls_nothing")
    with pytest.raises(AgentError, match="no_llm_call"):
        step(["a"])


def test_templates_reach_agents_elsewhere(fake_sglang, step, runners):
    runners("with_template")
    output = step(["you"], agl={"templates": {"greeting": "Hello {name}!"}})
    assert samples(output)[0].reward == 1.0
    assert "Hello you!" in fake_sglang.requests[0].text


def adds(request):
    """Call the tool where the agent has it, else answer."""
    said = request.text
    called = "tool_response" in said or "<|im_start|>tool" in said
    return "It is 10." if called or "add" not in said else tool_call_text("add", {"a": 3, "b": 7})


@pytest.mark.parametrize("agent", ["autogen", "langgraph", "plain_async", "templated"])
def test_agents_of_other_frameworks_run_unchanged(fake_sglang, step, runners, token_exact, agent):
    runners(agent)
    output = step(["3 + 7?"], responder=adds, agl={"templates": {"question": "Answer: {question}"}})
    assert [sample.reward for sample in samples(output)] == [1.0]
    turns = 2 if agent in ("autogen", "langgraph") else 1
    assert len(fake_sglang.answers) == turns and token_exact(fake_sglang, output.samples) > 0


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"runners": {"mode": "external"}}, "agl.store.url"),
        ({"store": {"url": "localhost:1"}}, "must start with http"),
        ({"store": {"serve": "127.0.0.1:4747"}}, "agl.runners.mode: external"),
        ({"store": {"serve": "0.0.0.0:4747"}, "runners": {"mode": "external"}}, "agl.store.key"),
        ({"store": {"url": "http://h:1", "serve": "h:1"}}, "not both"),
        ({"store": {"url": "http://h:1"}, "runners": {"mode": "thread"}}, "drop one"),
        ({"store": {"url": "http://h:1"}, "workers": {"count": 2}}, "agl.workers.count"),
        ({"store": {"url": "http://h:1"}, "runners": {"max_concurrency": 8}}, "max_concurrency.*agl.store has runners"),
        ({"store": {"url": "http://h:1"}, "runners": {"max_concurrency": "auto"}}, "agl.runners.max_concurrency"),
        ({"store": {"url": "http://h:1"}, "dashboard_port": 4748}, "agl.dashboard_port"),
    ],
)
def test_settings_that_contradict_are_refused(section, words):
    with pytest.raises(ConfigError, match=words):
        Config.read(section)


def test_a_store_that_is_not_there_is_named(rollout_args, port):
    args = rollout_args(agl={"store": {"url": f"http://127.0.0.1:{port}"}})
    with pytest.raises(ConfigError, match="no Agent Lightning store answers"):
        generate(args, 0, ListDataSource(["a"]))

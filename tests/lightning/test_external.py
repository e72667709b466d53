"""Runners of other processes: the agent runs there, its turns, rewards and failures arrive here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from slime_agl.assemble import current
from slime_agl.errors import AgentError, ConfigError
from slime_agl.rollout import generate, shutdown
from slime_agl.testing.host import ListDataSource

RUNNER = Path(__file__).with_name("runner_process.py")


class Runners:
    """A process group of runners."""

    def __init__(self, agent: str, count: int, port: int, host: str = "127.0.0.1") -> None:
        traces = f"http://{host}:{port}/v1/traces"
        environment = {
            **os.environ,
            "AGL_SERVER_HOST": host,
            "AGL_SERVER_PORT": str(port),
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": traces,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(RUNNER), agent, str(count)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()


@pytest.fixture
def port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def runners(port: int) -> Iterator[Callable[..., Runners]]:
    """`runners(agent, count)` starts processes that take rollouts from the store at `port`."""
    with ExitStack() as stack:

        def start(agent: str, count: int = 1, **more: Any) -> Runners:
            started = Runners(agent, count, port, **more)
            stack.callback(started.end)
            return started

        yield start


@pytest.fixture
def step(fake_sglang: Any, rollout_args: Callable[..., Any], port: int) -> Iterator[Callable[..., Any]]:
    """`step(rows, agl=..., **overrides)` is slime's call for a step over a store served at `port`."""
    with ExitStack() as stack:
        stack.callback(shutdown)

        def run(rows: list[Any], number: int = 0, *, agl: dict[str, Any] | None = None, **overrides: Any) -> Any:
            section = {"store": {"serve": f"127.0.0.1:{port}"}, **(agl or {})}
            section["runners"] = {"mode": "external", "timeout_seconds": 60.0, **section.get("runners", {})}
            fake_sglang.answer_with(lambda request: f"so it is {len(request.input_ids)}")
            args = rollout_args(**{"rollout_batch_size": len(rows), "agl": section, **overrides})
            run.source = ListDataSource(rows, args.n_samples_per_prompt)
            return generate(args, number, run.source)

        yield run


def samples(output: Any) -> list[Any]:
    return [sample for group in output.samples for sample in group]


def ask(coroutine: Any) -> Any:
    return current().run(coroutine)


def store() -> Any:
    return current()._lightning._store


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
        ({"store": {"url": "http://h:1"}, "agent": "a.b"}, "agl.agent"),
    ],
)
def test_settings_that_contradict_are_refused(section, words):
    from slime_agl.config import Config

    with pytest.raises(ConfigError, match=words):
        Config.read(section)


def test_a_store_that_is_not_there_is_named(rollout_args, port):
    args = rollout_args(agl={"store": {"url": f"http://127.0.0.1:{port}"}})
    with pytest.raises(ConfigError, match="no Agent Lightning store answers"):
        generate(args, 0, ListDataSource(["a"]))

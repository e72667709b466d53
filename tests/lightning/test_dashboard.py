"""Agent Lightning's dashboard over the store of the process."""

from __future__ import annotations

import socket

import httpx
import pytest

from slime_agl.assemble import current
from slime_agl.errors import ConfigError
from slime_agl.testing.agents import chat_agent


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_dashboard_shows_rollouts_and_no_key(fake_sglang, run_rollout, free_port):
    fake_sglang.answer_with(lambda request: "four")
    output = run_rollout(chat_agent(), ["a"], agl={"dashboard_port": free_port})
    url = f"http://127.0.0.1:{free_port}"
    assert "<!doctype html>" in httpx.get(f"{url}/").text.lower()
    listed = httpx.get(f"{url}/v1/agl/rollouts")
    assert output.samples[0][0].metadata["agl"]["rollout_id"] in listed.text
    everything = listed.text + httpx.get(f"{url}/v1/agl/resources").text
    assert "main_llm" in everything and "sk-agl" not in everything
    current().stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/")


def test_a_port_that_is_taken_is_named(fake_sglang, run_rollout):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"agl.dashboard_port.*{port}"):
            run_rollout(chat_agent(), ["a"], agl={"dashboard_port": port})

"""Agent Lightning's dashboard over the store of the process."""

from __future__ import annotations

import re
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


def address(caplog: pytest.LogCaptureFixture) -> str:
    """The dashboard's address as the log shows it, once."""
    (url,) = re.findall(r"dashboard is at (\S+)", caplog.text)
    return url


def test_the_dashboard_shows_rollouts_and_no_key(fake_sglang, run_rollout, free_port, caplog):
    caplog.set_level("INFO")
    fake_sglang.answer_with(lambda request: "four")
    output = run_rollout(chat_agent(), ["a"], agl={"dashboard_port": free_port})
    url = f"http://127.0.0.1:{free_port}"
    with httpx.Client(base_url=url, follow_redirects=True) as browser:
        opened = browser.get(address(caplog))
        assert "<!doctype html>" in opened.text.lower() and opened.url.path == "/" and not opened.url.query
        listed = browser.get("/v1/agl/rollouts", headers={"Sec-Fetch-Site": "same-origin"})
        assert output.samples[0][0].metadata["agl"]["rollout_id"] in listed.text
        everything = listed.text + browser.get("/v1/agl/resources").text
    assert "main_llm" in everything and "sk-agl" not in everything
    current().stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/")


def test_the_dashboard_answers_nobody_else(fake_sglang, run_rollout, free_port, caplog):
    caplog.set_level("INFO")
    fake_sglang.answer_with(lambda request: "four")
    run_rollout(chat_agent(), ["a"], agl={"dashboard_port": free_port})
    url, token = f"http://127.0.0.1:{free_port}", address(caplog).split("token=")[1]
    assert len(token) >= 32
    own = {"Authorization": f"Bearer {token}"}
    for method, path in (("GET", "/"), ("GET", "/v1/agl/rollouts"), ("POST", "/v1/agl/queues/rollouts/enqueue")):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "slime_agl_dashboard=x; ;=,"}):
            assert httpx.request(method, url + path, headers=headers).status_code == 401
        for headers in (
            {"Host": "evil.example"},
            {"Host": f"evil.example:{free_port}"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://127.0.0.1:{free_port + 1}"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            assert httpx.request(method, url + path, headers=own | headers).status_code == 403
    assert httpx.get(f"{url}/?token=wrong").status_code == 401
    assert httpx.get(f"{url}/v1/agl/rollouts", headers=own).status_code == 200
    current().stop()


def test_a_port_that_is_taken_is_named(fake_sglang, run_rollout):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"agl.dashboard_port.*{port}"):
            run_rollout(chat_agent(), ["a"], agl={"dashboard_port": port})

"""The `agl:` mapping is read once; errors name the key and the next step."""

from __future__ import annotations

import pytest

from slime_agl.config import Config, CreditConfig, describe
from slime_agl.errors import ConfigError


def test_defaults_need_nothing_but_an_agent():
    config = Config.read({"agent": "pkg.agent"})
    assert (config.history, config.sampling, config.runners.mode, config.gateway.port) == (
        "append",
        "trainer",
        "auto",
        0,
    )


def test_one_word_sets_the_policy_of_all_failures():
    failure = Config.read({"agent": "a.b", "failure": "negative"}).failure
    assert (failure.agent_error, failure.engine_error, failure.deadline) == ("negative",) * 3


def test_one_word_sets_how_credit_is_given():
    assert Config.read({"agent": "a.b", "credit": "per_turn"}).credit == CreditConfig("per_turn", 1.0)


def test_every_failure_has_its_own_policy_and_one_without_tokens_is_masked():
    failure = Config.read({"agent": "a.b", "failure": {"engine_error": "retry", "deadline": "negative"}}).failure
    named = ("agent_error", "engine_error", "deadline", "no_llm_call")
    assert [failure.policy(name) for name in named] == ["mask", "retry", "negative", "mask"]


@pytest.mark.parametrize(
    "mapping, words",
    [
        (None, "no `agl:` section found"),
        ([], "agl must be a mapping of keys to values, got list"),
        ({}, "agl.agent is missing"),
        ({"agent": "a.b", "runers": {}}, "agl.runers is not a key. Did you mean 'runners'?"),
        (
            {"agent": "a.b", "runners": {"mode": "asink"}},
            "must be one of auto, async, thread, external. Did you mean 'async'?",
        ),
        ({"agent": "a.b", "failure": {"max_attempts": 0}}, "agl.failure.max_attempts is 0, it must be at least 1"),
        ({"agent": "a.b", "failure": {"deadline": "rety"}}, "Did you mean 'retry'?"),
        ({"agent": "a.b", "credit": "per_trun"}, "Did you mean 'per_turn'?"),
        ({"agent": "a.b", "credit": {"mode": "per_turn", "discount": 1.5}}, "agl.credit.discount is 1.5"),
        ({"agent": "a.b", "credit": {"discount": 0.9}}, "only `per_turn` discounts"),
        ({"agent": "a.b", "runners": {"timeout_seconds": -1}}, "it must be above 0"),
        ({"agent": "a.b", "gateway": {"port": "http"}}, "agl.gateway.port is 'http' (str), it must be a whole number"),
        ({"agent": "a.b", "gateway": {"port": 70000}}, "70000"),
        ({"agent": "a.b", "gateway": {"public_url": "box:80"}}, "must start with http"),
        ({"agent": "a.b", "gateway": {"public_url": "http://box/{wroker}"}}, "{wroker} is not one of {worker}, {host}"),
        ({"agent": "a.b", "gateway": 3}, "agl.gateway must be a mapping"),
        ({"agent": "a.b", "task": {"question": 1}}, "a mapping of strings to strings"),
        ({"agent": "a.b", "failure": "maks"}, "Did you mean 'mask'?"),
        ({"agent": 3}, "agl.agent is 3 (int), it must be a string"),
    ],
)
def test_what_is_wrong_is_named(mapping: object, words: str):
    with pytest.raises(ConfigError) as caught:
        Config.read(mapping)
    assert words in str(caught.value)


def test_every_key_is_documented():
    rows = describe()
    assert ("agl.failure.max_attempts", "3") in [row[:2] for row in rows]
    assert all(meaning for _, _, meaning in rows)


def test_a_program_is_the_agent_where_agent_is_a_mapping(monkeypatch) -> None:
    config = Config.read({"agent": {"harness": "codex", "timeout_seconds": 60, "env": {"A": "prompt"}}})
    assert (config.agent.harness, config.agent.timeout_seconds, config.agent.reward) == ("codex", 60.0, "verifier")
    assert str(config.agent) == "harness codex" and config.agent.env == {"A": "prompt"}
    monkeypatch.setenv("TASKS", "/somewhere")
    config = Config.read({"agent": {"command": "x"}, "tasks": {"harbor": "$TASKS/mine"}})
    assert str(config.tasks.folder) == "/somewhere/mine" and str(config.agent) == "command 'x'"


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"agent": {}}, "either a harness or a command, got neither"),
        ({"agent": {"harness": "codex", "command": "x"}}, "got harness: codex, command: x"),
        ({"agent": {"harness": "codex", "timeout": 3}}, r"agl\.agent\.timeout is not a key.*timeout_seconds"),
        ({"agent": {"harness": "codex", "timeout_seconds": 0}}, "timeout_seconds is 0"),
        ({"agent": {"harness": "codex", "on_exit": "mask"}}, "grade, zero, fail"),
        ({"agent": {"command": "x", "version": "1"}}, "its own version"),
        ({"agent": {"harness": "codex", "install": "x"}}, "installs itself"),
        ({"agent": 3}, r"agl\.agent is 3 \(int\), it must be a string or a mapping"),
    ],
)
def test_a_program_that_cannot_be_run_is_refused(section, says) -> None:
    with pytest.raises(ConfigError, match=says):
        Config.read(section)


def test_a_folder_of_tasks_names_variables_that_are_set(monkeypatch) -> None:
    monkeypatch.delenv("UNSET", raising=False)
    with pytest.raises(ConfigError, match="is not set"):
        _ = Config.read({"agent": "a.b", "tasks": {"harbor": "$UNSET/x"}}).tasks.folder

"""The objects accepted as an agent."""

from __future__ import annotations

import functools

import pytest

from slime_agl.errors import ConfigError
from slime_agl.lightning._agl import LitAgent
from slime_agl.lightning.agents import is_async, load_agent


class SyncAgent(LitAgent):
    def rollout(self, task, resources, rollout):
        return 1.0


class AsyncAgent(LitAgent):
    async def rollout_async(self, task, resources, rollout):
        return 1.0


class NeedsArgument(SyncAgent):
    def __init__(self, temperature):
        super().__init__()


class AsyncCallable:
    async def __call__(self, task, llm):
        return 1.0


def plain(task, llm):
    return 1.0


async def plain_async(task, llm, rollout):
    return 1.0


async def only_task(task):
    return 1.0


def both(task, prompt_template, llm, retries=3):
    return 1.0


def decorated():
    import agentlightning as agl

    return agl.rollout(plain_async)


def make_instance(size=4):
    return NeedsArgument(size)


def make_class():
    return AsyncAgent


def make_function():
    return plain


@pytest.mark.parametrize(
    "given, asynchronous",
    [
        (SyncAgent(), False),
        (AsyncAgent, True),
        (plain, False),
        (plain_async, True),
        (only_task, True),
        (both, False),
        (functools.partial(plain_async, rollout=None), True),
        (AsyncCallable(), True),
        (decorated(), True),
        (decorated, True),
        (make_instance, False),
        (make_class, True),
        (make_function, False),
    ],
)
def test_accepted_agents_become_lit_agents(given, asynchronous) -> None:
    agent = load_agent(given)
    assert isinstance(agent, LitAgent)
    assert is_async(agent) is asynchronous


def misspelt(task, lm): ...


def no_task(question, llm): ...


def returns_text():
    return "agent"


async def async_factory():
    return SyncAgent()


@pytest.mark.parametrize(
    "given, words",
    [
        (misspelt, "parameter 'lm' that nothing fills.*Did you mean 'llm'"),
        (no_task, r"the callable no_task\(question, llm\); expected a LitAgent"),
        (NeedsArgument, "needs the argument 'temperature'"),
        (returns_text, "factory returns_text returned a str"),
        (async_factory, "returned a coroutine"),
        (dict, "the class dict"),
        ("my_module:agent", "a str"),
        (None, "a NoneType"),
    ],
)
def test_anything_else_is_refused_with_what_was_given_and_what_is_accepted(given, words) -> None:
    with pytest.raises(ConfigError, match=words):
        load_agent(given)

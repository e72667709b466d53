"""Make LitAgents from what the user names as agent."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any, TypeGuard

from slime_agl.errors import ConfigError, closest
from slime_agl.lightning._agl import AnyAgent, FunctionalLitAgent, LitAgent

logger = logging.getLogger(__name__)

SLOW_COPY_SECONDS = 1.0
_FILLED = ("task", "llm", "prompt_template", "rollout")
_ACCEPTED = (
    "a LitAgent instance or subclass, a function decorated with @agl.rollout, a plain or async function with a "
    "'task' parameter (and any of llm, prompt_template, rollout), or a factory without required parameters that "
    "returns one of these"
)


class Agents:
    """Provides each slot with its own agent, so that state on an agent belongs to one execution.

    A class or factory is called once per slot. An instance is deep-copied and itself left unchanged; a function has no
    state and is wrapped anew.

    first: the agent of the first slot. uncopyable: why all slots must share one instance, one execution at a time; ''
    if they need not.
    """

    def __init__(self, make: Callable[[], AnyAgent], spare: list[AnyAgent], uncopyable: str = "") -> None:
        self._make, self._spare = make, spare
        self.first = spare[0]
        self.uncopyable = uncopyable

    def take(self) -> AnyAgent:
        """Return an agent that no other slot has. Raises whatever the user's class, factory or copying raises."""
        return self._spare.pop(0) if self._spare else self._make()

    def metrics(self) -> dict[str, float]:
        """What `metrics()` of the first agent returns, if it has that."""
        metrics = getattr(self.first, "metrics", None)
        return dict(metrics()) if inspect.ismethod(metrics) else {}

    async def close(self) -> None:
        """Await `aclose()` of the first agent, if it has that; it closes what all of them share."""
        close = getattr(self.first, "aclose", None)
        if inspect.iscoroutinefunction(close):
            await close()


def load_agents(obj: object) -> Agents:
    """Make agents from an agent, a function, a class or a factory.

    Raises:
        ConfigError: `obj` is none of the accepted kinds; names its kind and the accepted ones.
    """
    if isinstance(obj, type) and issubclass(obj, LitAgent):
        return Agents(lambda: _instance(obj), [_instance(obj)])
    agent = _agent_of(obj)
    if agent is not None:
        return _copies_of(agent)
    if not _is_factory(obj):
        raise ConfigError(f"the agent is {_describe(obj)}; expected {_ACCEPTED}")
    first, second = _made_by(obj), _made_by(obj)
    if first is second:
        # The factory always returns the same agent, as a cached one does.
        return _copies_of(first)
    return Agents(lambda: _made_by(obj), [first, second])


def load_agent(obj: object) -> AnyAgent:
    """Load one agent for inspection. Raises ConfigError as `load_agents`."""
    return load_agents(obj).first


def _made_by(factory: Callable[[], object]) -> AnyAgent:
    made = factory()
    agent = _agent_of(made)
    if agent is None:
        if inspect.iscoroutine(made):
            made.close()
        raise ConfigError(f"agent factory {_name(factory)} returned {_describe(made)}; expected {_ACCEPTED}")
    return agent


def _copies_of(agent: AnyAgent) -> Agents:
    if _is_stateless(agent):
        return Agents(lambda: copy.copy(agent), [copy.copy(agent)])
    began = time.monotonic()
    try:
        first = copy.deepcopy(agent)
    except Exception as error:
        # Whatever copying a user's object raises (mostly the TypeError of a lock), the object cannot be duplicated.
        reason = f"{type(error).__name__}: {error}"
        logger.warning(
            "the agent %s cannot be copied (%s), so its executions run one at a time; name its class, or a factory "
            "without parameters that makes one, and each of them gets an agent of its own",
            _describe(agent),
            reason,
        )
        return Agents(lambda: agent, [agent], uncopyable=reason)
    if (seconds := time.monotonic() - began) > SLOW_COPY_SECONDS:
        logger.warning(
            "copying the agent %s took %.1f s, once for each execution that runs at a time; name a factory without "
            "parameters whose agents share what is large",
            _describe(agent),
            seconds,
        )
    return Agents(lambda: copy.deepcopy(agent), [first])


def _is_stateless(agent: AnyAgent) -> bool:
    """Return True if an agent is a plain function, without state beyond its module and closure."""
    if type(agent) is not FunctionalLitAgent:
        return False
    function = agent._rollout_func
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    return inspect.isroutine(function) and (owner is None or isinstance(owner, type) or inspect.ismodule(owner))


def is_async(agent: AnyAgent) -> bool:
    """Return True if the agent's rollout methods are coroutines."""
    return agent.is_async()


def _agent_of(obj: object) -> AnyAgent | None:
    if isinstance(obj, LitAgent):
        return obj
    if isinstance(obj, type):
        return _instance(obj) if issubclass(obj, LitAgent) else None
    if callable(obj) and "task" in _parameters(obj):
        _check_parameters(obj)
        # Wrap a callable object's method: only that tells whether it is a coroutine function.
        plain = inspect.isroutine(obj) or isinstance(obj, functools.partial)
        function: Callable[..., Any] = obj if plain else obj.__call__
        return FunctionalLitAgent(function)
    return None


def _instance(cls: type[AnyAgent]) -> AnyAgent:
    required = [p for p in _parameters(cls).values() if _required(p)]
    if required:
        raise ConfigError(
            f"agent class {_name(cls)} needs the argument {required[0].name!r}; "
            "name a factory without parameters that makes the instance"
        )
    return cls()


def _check_parameters(obj: Callable[..., object]) -> None:
    for parameter in _parameters(obj).values():
        if _required(parameter) and parameter.name not in _FILLED:
            raise ConfigError(
                f"agent {_name(obj)} has a parameter {parameter.name!r} that nothing fills; "
                f"these are filled: {', '.join(_FILLED)}.{closest(parameter.name, _FILLED)}"
            )


def _is_factory(obj: object) -> TypeGuard[Callable[[], object]]:
    return callable(obj) and not isinstance(obj, type) and not any(map(_required, _parameters(obj).values()))


def _parameters(obj: Callable[..., object]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        # Some callables written in C have no signature; they cannot be agents.
        return {"?": inspect.Parameter("_", inspect.Parameter.POSITIONAL_ONLY)}


def _required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not variadic


def _name(obj: object) -> str:
    return getattr(obj, "__qualname__", None) or type(obj).__qualname__


def _describe(obj: object) -> str:
    if isinstance(obj, type):
        return f"the class {_name(obj)}"
    if callable(obj):
        signature = ", ".join(_parameters(obj))
        return f"the callable {_name(obj)}({signature})"
    return f"a {type(obj).__name__} ({obj!r:.80})"

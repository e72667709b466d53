"""What the user named as agent, made into a LitAgent."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from slime_agl.errors import ConfigError, closest
from slime_agl.lightning._agl import FunctionalLitAgent, LitAgent

_FILLED = ("task", "llm", "prompt_template", "rollout")
_ACCEPTED = (
    "a LitAgent instance or subclass, a function decorated with @agl.rollout, a plain or async function with a "
    "'task' parameter (and any of llm, prompt_template, rollout), or a factory without required parameters that "
    "returns one of these"
)


def load_agent(obj: object) -> LitAgent[Any]:
    """Return the agent that `obj` is, wraps or makes.

    Raises:
        ConfigError: `obj` is none of the accepted kinds; says what it is and what is accepted.
    """
    agent = _agent_of(obj)
    if agent is None and _is_factory(obj):
        made = obj()  # type: ignore[operator]
        agent = _agent_of(made)
        if agent is None:
            if inspect.iscoroutine(made):
                made.close()
            raise ConfigError(f"agent factory {_name(obj)} returned {_describe(made)}; expected {_ACCEPTED}")
    if agent is None:
        raise ConfigError(f"the agent is {_describe(obj)}; expected {_ACCEPTED}")
    return agent


def is_async(agent: LitAgent[Any]) -> bool:
    """Whether the agent's rollout methods are coroutines."""
    return agent.is_async()


def _agent_of(obj: object) -> LitAgent[Any] | None:
    if isinstance(obj, LitAgent):
        return obj
    if isinstance(obj, type):
        return _instance(obj) if issubclass(obj, LitAgent) else None
    if callable(obj) and "task" in _parameters(obj):
        _check_parameters(obj)
        # A callable object is wrapped by its method, which says whether it is a coroutine function.
        plain = inspect.isroutine(obj) or isinstance(obj, functools.partial)
        return FunctionalLitAgent(obj if plain else obj.__call__)
    return None


def _instance(cls: type[LitAgent[Any]]) -> LitAgent[Any]:
    required = [p for p in _parameters(cls).values() if _required(p)]
    if required:
        raise ConfigError(
            f"agent class {_name(cls)} needs the argument {required[0].name!r}; "
            "name a factory without parameters that makes the instance"
        )
    return cls()


def _check_parameters(obj: Any) -> None:
    for parameter in _parameters(obj).values():
        if _required(parameter) and parameter.name not in _FILLED:
            raise ConfigError(
                f"agent {_name(obj)} has a parameter {parameter.name!r} that nothing fills; "
                f"these are filled: {', '.join(_FILLED)}.{closest(parameter.name, _FILLED)}"
            )


def _is_factory(obj: object) -> bool:
    return callable(obj) and not isinstance(obj, type) and not any(map(_required, _parameters(obj).values()))


def _parameters(obj: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        # Some callables written in C tell no signature; they cannot be agents.
        return {"?": inspect.Parameter("_", inspect.Parameter.POSITIONAL_ONLY)}


def _required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and not variadic


def _name(obj: Any) -> str:
    return getattr(obj, "__qualname__", None) or type(obj).__qualname__


def _describe(obj: object) -> str:
    if isinstance(obj, type):
        return f"the class {_name(obj)}"
    if callable(obj):
        signature = ", ".join(_parameters(obj))
        return f"the callable {_name(obj)}({signature})"
    return f"a {type(obj).__name__} ({obj!r:.80})"

"""Hooks on finished samples; stands in for `slime.rollout.sample_hooks`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from slime_agl.host.pieces import resolve


async def apply_rollout_sample_hooks(args: Any, value: Any, **kwargs: Any) -> Any:
    """Run every hook of `args.rollout_sample_hook_path` on each Sample of a nested list, keeping its shape.

    A hook is called as hook(args, sample, **kwargs), with those kwargs that it names; it may be async. A Sample that it
    returns replaces its argument.

    Raises:
        TypeError: a leaf is not a Sample, or a hook returned something other than a Sample or None.
    """
    paths = getattr(args, "rollout_sample_hook_path", None) or []
    if not paths:
        return value
    kwargs.setdefault("rollout_id", None)
    hooks = [(path, resolve("load_function")(path)) for path in paths]
    return await _apply(args, value, hooks, kwargs)


async def _apply(args: Any, value: Any, hooks: list[tuple[str, Callable[..., Any]]], kwargs: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [await _apply(args, item, hooks, kwargs) for item in value]
    sample_class = resolve("Sample")
    if not isinstance(value, sample_class):
        raise TypeError(f"sample hooks take a Sample or a nest of lists of them, got {type(value).__name__}")
    for path, hook in hooks:
        result = hook(args, value, **_named_by(hook, kwargs))
        if inspect.isawaitable(result):
            result = await result
        if result is None:
            continue
        if not isinstance(result, sample_class):
            raise TypeError(f"sample hook {path} returned {type(result).__name__}; it must return a Sample or None")
        value = result
    return value


def _named_by(hook: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(hook).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return kwargs
    return {name: value for name, value in kwargs.items() if name in parameters}

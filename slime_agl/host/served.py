"""Find the trained model among those that slime serves under --sglang-config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from slime_agl.errors import ConfigError, closest

FLAG = "--sglang-config"


def trained_model(path: str | Path, hf_checkpoint: Any) -> str:
    """The name of the one model that gets the trainer's weights.

    As in slime's `ModelConfig.resolve`: `update_weights` decides; if omitted, the model whose path is --hf-checkpoint
    gets them. slime's default address is that of the first model listed, whether or not it is trained.

    Raises:
        ConfigError: the file cannot be read, two models share a name, or the number that get weights is not one.
    """
    models = _models(str(path))
    names = [model["name"] for model in models]
    if double := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"{FLAG} {path} names {double[0]!r} twice, and slime keeps one of them; rename the other")
    trained = [model["name"] for model in models if _gets_weights(model, hf_checkpoint)]
    if len(trained) == 1:
        return trained[0]
    if not trained:
        raise ConfigError(
            f"{FLAG} {path}: none of its {len(names)} models ({', '.join(names)}) gets weights, so agents would train "
            "on answers of a frozen model; set `update_weights: true` for the one that is trained"
        )
    raise ConfigError(
        f"{FLAG} {path}: {len(trained)} of its {len(names)} models get weights ({', '.join(trained)}), and slime "
        f"updates only {trained[0]}; set `update_weights: false` for the others"
    )


def trained_address(args: Any) -> tuple[str, int] | None:
    """The router of the trained model; None if slime's default address is right. args: slime's namespace.

    Raises:
        ConfigError: see `trained_model`; or slime has started no router for that model.
    """
    path = getattr(args, "sglang_config", None)
    if path is None:
        return None
    name = trained_model(path, getattr(args, "hf_checkpoint", None))
    routers: Mapping[str, Any] | None = getattr(args, "sglang_model_routers", None)
    if not routers:
        return None
    if name not in routers:
        raise ConfigError(
            f"{FLAG} {path} trains {name!r}, slime's routers are for {', '.join(routers)}.{closest(name, routers)}"
        )
    host, port = routers[name]
    return host, port


@cache
def _models(path: str) -> tuple[Mapping[str, Any], ...]:
    """Read the file once per process, as slime does: a later change does not affect the run."""
    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{FLAG} {path} cannot be read: {error}") from error
    models = loaded.get("sglang") if isinstance(loaded, Mapping) else None
    if not isinstance(models, list) or not all(isinstance(model, Mapping) and model.get("name") for model in models):
        raise ConfigError(f"{FLAG} {path} must have the key `sglang` with a list of models, each with a `name`")
    return tuple(models)


def _gets_weights(model: Mapping[str, Any], hf_checkpoint: Any) -> bool:
    if model.get("update_weights") is not None:
        return bool(model["update_weights"])
    groups = model.get("server_groups") or model.get("engine_groups") or []
    own = model.get("model_path") or hf_checkpoint
    paths = [(group.get("overrides") or {}).get("model_path", own) for group in groups] or [own]
    return all(path == hf_checkpoint for path in paths)

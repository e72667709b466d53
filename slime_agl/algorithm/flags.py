"""A mapping of settings as slime's flags."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slime_agl.errors import ConfigError

logger = logging.getLogger(__name__)

NEAR = 0.85
# What the Trainer's datasets and this package decide.
OURS = (
    "prompt_data",
    "eval_prompt_data",
    "eval_config",
    "input_key",
    "label_key",
    "metadata_key",
    "apply_chat_template",
    "custom_config_path",
    "rollout_function_path",
)


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """Flags of slime's driver in snake case, each with its kind (see `known_flags`). whole: none is missing."""

    flags: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False


def check_names(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that cannot be a flag, or that the Trainer decides."""
    for name in config:
        if not isinstance(name, str) or not name.isidentifier():
            plain = str(name).lstrip("-").replace("-", "_")
            meant = f"write it {plain}" if plain.isidentifier() else "as in n_samples_per_prompt"
            raise ConfigError(f"the key {name!r} is not a slime flag in snake case; {meant}")
        if name in OURS:
            raise ConfigError(f"{name} is set by slime_agl.SLIME, from the Trainer's datasets and agent; leave it out")


def check_keys(config: Mapping[str, Any], known: KnownFlags) -> None:
    """Refuse keys that slime does not have: its parser ignores unknown flags without a word.

    Where not all flags are known, a key is refused if it is near a known one, and else said to be unchecked.

    Raises:
        ConfigError: names the key and the nearest flag.
    """
    unknown = [name for name in config if name != "agl" and name not in known.flags]
    for name in unknown:
        near = difflib.get_close_matches(name, known.flags, n=1, cutoff=0.6 if known.whole else NEAR)
        if known.whole or near:
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{name} is no flag of slime.{meant} Keys are slime's flags in snake case")
    if unknown:
        logger.warning(
            "%s: not checked, because not all of slime, SGLang and Megatron can be imported here; slime ignores flags "
            "that it does not know",
            ", ".join(unknown),
        )


def words_of(config: Mapping[str, Any], known: KnownFlags) -> list[str]:
    """The settings as words of a command line.

    True is a flag without a value, False and None leave it out (or write `--no-FLAG` where there is that); a list
    becomes several words, a mapping JSON.

    Raises:
        ConfigError: the value does not fit the flag.
    """
    words: list[str] = []
    for name, value in config.items():
        if name != "agl":
            words += _words(name, value, known.flags.get(name, ""))
    return words


def _words(name: str, value: Any, kind: str) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, bool):
        if kind in ("value", "list"):
            return [flag, str(value)]
        return [flag] if value else [f"--no-{flag[2:]}"] if kind == "either" else []
    if kind in ("switch", "clears", "either"):
        raise ConfigError(f"{name} is {value!r}, and {flag} takes no value; set it to true, or leave it out")
    if isinstance(value, list | tuple):
        if kind == "value":
            raise ConfigError(f"{name} is a list of {len(value)}, and {flag} takes one value")
        return [flag, *(_word(name, item) for item in value)]
    return [flag, _word(name, value)]


def _word(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{name} is a {type(value).__name__}; flags take text, numbers, booleans, lists and mappings")

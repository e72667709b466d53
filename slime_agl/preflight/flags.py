"""slime's flags, checked without slime's parser."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from slime_agl.config import Config
from slime_agl.errors import SlimeAglError
from slime_agl.host import RolloutArgs
from slime_agl.report.checks import Finding
from slime_agl.rollout.refusals import cautions, problems

# Flags that set an argument of another name to false.
_CLEARS = {
    "disable_rewards_normalization": "rewards_normalization",
    "disable_grpo_std_normalization": "grpo_std_normalization",
}


def read_flags(words: Sequence[str]) -> dict[str, Any]:
    """Parse flags to slime's argument names. Values are YAML; several make a list; a flag without a value is true."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            values = found[name.replace("-", "_")] = [value] if given else []
        else:
            values.append(word)
    return {_CLEARS.get(name, name): name not in _CLEARS and _value(texts) for name, texts in found.items()}


def _value(texts: list[str]) -> Any:
    parsed = []
    for text in texts:
        try:
            parsed.append(yaml.safe_load(text))
        except yaml.YAMLError:
            parsed.append(text)
    return True if not parsed else parsed[0] if len(parsed) == 1 else parsed


def look_at_flags(words: Sequence[str], more: Mapping[str, Any], config: Config) -> Iterator[Finding]:
    """Yield the flags that a run would refuse or warn of. more: slime's arguments from the YAML file."""
    name = "slime's arguments"
    try:
        args = RolloutArgs.read(Namespace(**{**read_flags(words), **more}))
    except SlimeAglError as error:
        yield Finding(name, "fail", str(error))
        return
    refused = list(problems(args, config))
    yield from (Finding(name, "fail", text) for text in refused)
    yield from (Finding(name, "look", text) for text in cautions(args, config))
    if not refused:
        yield Finding(name, "pass", f"{len(read_flags(words))} flags, none refused")

"""Tell the flags of slime's driver, where slime is: `python -m slime_agl.host.known_flags SLIME_DIR`.

Writes JSON: {"whole": bool, "flags": {name in snake case: kind}}. kind: `value`, `list`, `switch` (without a value),
`either` (also with `--no-`) or `clears`. whole: no flag of slime, SGLang or Megatron can be missing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ADDED = re.compile(
    r"""(?:add_argument|reset_arg)\(\s*(?:parser,\s*)?["']--([\w-]+)["'](.*?)(?=\n\s*\)|add_argument|reset_arg|\Z)""",
    re.DOTALL,
)
# slime reads these before its parser is made.
EARLY = {
    "train_backend": "value",
    "debug_rollout_only": "switch",
    "debug_train_only": "switch",
    "load_debug_rollout_data": "value",
}


def main() -> None:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    flags: dict[str, str] = dict(EARLY)
    missing = [name for name, add in _PARSERS.items() if not _parsed(add, flags)]
    if "slime" in missing and directory is not None:
        flags |= from_source(directory / "slime" / "utils" / "arguments.py")
    sys.stdout.write(json.dumps({"whole": not missing, "flags": flags}))


def from_source(path: Path) -> dict[str, str]:
    """Flags that a module adds to a parser, read from its text, for a machine that cannot import it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    return {name.replace("-", "_"): _kind_of_text(rest) for name, rest in _ADDED.findall(text)}


def _kind_of_text(rest: str) -> str:
    if "BooleanOptionalAction" in rest:
        return "either"
    if "store_false" in rest:
        return "clears"
    if "store_true" in rest:
        return "switch"
    return "list" if "nargs=" in rest else "value"


def _parsed(add: Callable[[argparse.ArgumentParser], object], flags: dict[str, str]) -> bool:
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    try:
        add(parser)
    except Exception:  # whatever importing a trainer's packages raises on a machine without them
        return False
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                flags[option[2:].replace("-", "_")] = _kind(action)
    return True


def _kind(action: Any) -> str:
    if isinstance(action, argparse.BooleanOptionalAction):
        return "either"
    if action.nargs == 0:
        return "clears" if action.const is False else "switch"
    return "value" if action.nargs in (None, "?") else "list"


def _slime(parser: argparse.ArgumentParser) -> object:
    return importlib.import_module("slime.utils.arguments").get_slime_extra_args_provider()(parser)


def _sglang(parser: argparse.ArgumentParser) -> object:
    return importlib.import_module("slime.backends.sglang_utils.arguments").add_sglang_arguments(parser)


def _megatron(parser: argparse.ArgumentParser) -> object:
    return importlib.import_module("megatron.training.arguments").add_megatron_arguments(parser)


_PARSERS = {"megatron": _megatron, "slime": _slime, "sglang": _sglang}


if __name__ == "__main__":
    main()

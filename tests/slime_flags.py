"""The flags that slime's command line knows, where slime is on PYTHONPATH."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Prints the flags of slime's own parser. What slime's module of arguments imports beside it is named only, until a
# command line is read; a process of its own keeps the stand-ins away from other tests.
PRINT_FLAGS = """
import argparse, sys
from importlib.util import find_spec
from unittest.mock import MagicMock

missing = {name for name in ("sglang", "sglang_router", "httpx", "wandb", "ray") if find_spec(name) is None}
inner = ("sglang.srt", "sglang.srt.server_args", "sglang_router.launch_router")
for name in ("sglang", "sglang_router", *inner, "httpx", "wandb", "ray"):
    if name.partition(".")[0] in missing:
        sys.modules[name] = MagicMock()
from slime.utils.arguments import get_slime_extra_args_provider

parser = argparse.ArgumentParser(conflict_handler="resolve")
get_slime_extra_args_provider()(parser)
print(*(option for action in parser._actions for option in action.option_strings))
"""


def slime_folder() -> Path:
    """The checkout that is on PYTHONPATH; skips the test without one."""
    slime = pytest.importorskip("slime.utils.types", reason="slime is not on PYTHONPATH", exc_type=ImportError)
    return Path(slime.__file__).parents[2]


def known_flags(slime: Path) -> set[str]:
    """Flags of slime's own parser, and of Megatron, SGLang and the router as slime's scripts and docs name them."""
    done = subprocess.run([sys.executable, "-c", PRINT_FLAGS], capture_output=True, text=True, timeout=120)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"slime's parser needs more packages: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    named = [path for kind in ("scripts/**/*.sh", "examples/**/*.sh", "docs/en/**/*.md") for path in slime.glob(kind)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in named)
    return set(done.stdout.split()) | set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))

"""Take each object from slime or from its stand-in.

Each module of slime is tried separately, since some need packages (ray, pylatexenc, pillow) that a machine with slime's
`Sample` may lack. The stand-ins build whichever `Sample` is in use, so both kinds mix.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

TYPES = "slime.utils.types"

# slime's module -> (the module that stands in for it, the names taken from it)
_MODULES = {
    TYPES: ("slime_agl.host.sample", ("Sample",)),
    "slime.utils.misc": ("slime_agl.host.loading", ("load_function",)),
    "slime.rollout.base_types": (
        "slime_agl.host.outputs",
        ("RolloutFnTrainOutput", "RolloutFnEvalOutput", "call_rollout_fn"),
    ),
    "slime.rollout.filter_hub.base_types": (
        "slime_agl.host.filters",
        ("DynamicFilterOutput", "MetricGatherer", "call_dynamic_filter", "should_drop_dynamic_filter_output"),
    ),
    "slime.rollout.filter_hub.dynamic_sampling_filters": ("slime_agl.host.filters", ("check_reward_nonzero_std",)),
    "slime.rollout.sample_hooks": ("slime_agl.host.sample_hooks", ("apply_rollout_sample_hooks",)),
    "slime.rollout.rm_hub": ("slime_agl.host.reward_hub", ("async_rm", "batched_async_rm")),
    "slime.utils.data": ("slime_agl.host.dataset", ("Dataset",)),
    "slime.utils.processing_utils": ("slime_agl.host.dataset", ("load_processor",)),
    "slime.rollout.data_source": (
        "slime_agl.host.data_source",
        ("RolloutDataSource", "RolloutDataSourceWithBuffer"),
    ),
    "slime.utils.eval_config": ("slime_agl.host.eval_config", ("EvalDatasetConfig", "build_eval_dataset_configs")),
}

PIECES = {name: module for module, (_, names) in _MODULES.items() for name in names}


def resolve(name: str) -> Any:
    """Return slime's object of that name, or its stand-in. name: a key of `PIECES`."""
    return getattr(_module(PIECES[name]), name)


@cache
def slime_available() -> bool:
    """Return True if slime's `Sample` can be imported in this process.

    An unrelated package named slime has no `slime.utils.types`; it does not count and is not imported.
    """
    if TYPES not in sys.modules and not _on_path():
        return False
    return _imported(TYPES) is not None


def where() -> str:
    """Describe the slime in use, for logs."""
    if not slime_available():
        return "stand-ins (slime is not importable)"
    package = importlib.import_module("slime")
    places = [package.__file__ or "", *getattr(package, "__path__", [])]
    return f"slime at {next((str(Path(place).parent) for place in places if place), 'an unknown place')}"


def _on_path() -> bool:
    # Looking for the file avoids importing an unrelated package of the same name.
    spec = importlib.util.find_spec("slime")
    places = spec.submodule_search_locations if spec else None
    return any(Path(place, "utils", "types.py").is_file() for place in places or ())


@cache
def _module(real: str) -> ModuleType:
    found = _imported(real) if slime_available() else None
    return found if found is not None else importlib.import_module(_MODULES[real][0])


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # OSError: torch without its shared libraries
        logger.info("%s cannot be imported (%s); a stand-in takes its place", name, error)
        return None

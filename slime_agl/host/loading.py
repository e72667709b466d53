"""Import paths to objects. `load_function` stands in for the one in `slime.utils.misc`."""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

from slime_agl.errors import ConfigError, closest
from slime_agl.host.pieces import slime_available

# Paths from slime's flags that work without slime too.
_STAND_INS = {
    "slime.rollout.data_source": "slime_agl.host.data_source",
    "slime.rollout.filter_hub.dynamic_sampling_filters": "slime_agl.host.filters",
    "slime.rollout.rm_hub": "slime_agl.host.reward_hub",
}


@cache
def load_function(path: str) -> Any:
    """Import `pkg.mod` and return its `attr`, for the path `pkg.mod.attr`.

    Raises:
        ImportError, AttributeError: as import and getattr raise them.
    """
    module_path, _, attribute = path.rpartition(".")
    module = importlib.import_module(_STAND_INS.get(module_path, module_path))
    return getattr(module, attribute)


def load_object(path: str, *, key: str = "import path") -> Any:
    """Return the object at `pkg.mod.attr` or `pkg.mod:attr`; after a colon `attr` may have dots.

    Args:
        key: what the user calls this path (`agl.agent`, `--custom-rm-path`); errors begin with it.

    Raises:
        ConfigError: the path is malformed, its module cannot be imported, or it has no such attribute.
    """
    module_path, _, attributes = path.rpartition(":" if ":" in path else ".")
    if not all(part.isidentifier() for part in [*module_path.split("."), *attributes.split(".")]):
        raise ConfigError(f"{key} is {path!r}, it must look like pkg.module.name or pkg.module:name")
    found: Any = _import(
        module_path if slime_available() else _STAND_INS.get(module_path, module_path), f"{key} {path!r}"
    )
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise ConfigError(_no_attribute(found, attribute, f"{key} {path!r}"))
        found = getattr(found, attribute)
    return found


def _import(module_path: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_path}.".startswith(f"{error.name}."):
            raise ConfigError(_no_module(error.name, what)) from error
        raise ConfigError(
            f"{what}: module {module_path} imports {error.name}, which is not installed; install it where slime runs"
        ) from error
    except Exception as error:  # the user's module runs its own code while it is imported
        raise ConfigError(
            f"{what}: importing {module_path} raised {type(error).__name__}: {error}{_place(error)}"
        ) from error


def _place(error: Exception) -> str:
    """Where it was raised; the text of a SyntaxError already says so."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return "" if isinstance(error, SyntaxError) else f" ({frames[-1].filename}, line {frames[-1].lineno})"


def _no_module(missing: str, what: str) -> str:
    parent, _, name = missing.rpartition(".")
    if not parent:
        return (
            f"{what}: there is no module {name!r}.{closest(name, _modules_in(None))} "
            "Put the directory that holds it on PYTHONPATH"
        )
    package = importlib.import_module(parent)
    if not hasattr(package, "__path__"):
        return f"{what}: {parent} is a module, not a package; write {parent}:{name}.attribute for what is inside {name}"
    return f"{what}: package {parent} has no module {name!r}.{closest(name, _modules_in(package.__path__))}"


def _modules_in(places: Iterable[str] | None) -> list[str]:
    return [module.name for module in pkgutil.iter_modules(places)]


def _no_attribute(owner: Any, attribute: str, what: str) -> str:
    if isinstance(owner, ModuleType):
        kind, name = "module", owner.__name__
    else:
        kind, name = "object", getattr(owner, "__qualname__", type(owner).__name__)
    public = [known for known in dir(owner) if not known.startswith("_")]
    return f"{what}: {kind} {name} has no {attribute!r}.{closest(attribute, public)}"

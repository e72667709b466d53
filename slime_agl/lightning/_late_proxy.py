"""Load Agent Lightning's LLM proxy on first use.

Importing agentlightning imports `llm_proxy` and with it LiteLLM's proxy server, which takes most of the import's time
and memory and is not used here. A stand-in module, registered before agentlightning is imported, loads the real
`LLMProxy` on first use. Agent Lightning itself is unchanged.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

NAME = "agentlightning.llm_proxy"


def register() -> None:
    """Register the stand-in, unless agentlightning is already imported."""
    if "agentlightning" not in sys.modules:
        sys.modules[NAME] = _LateModule(NAME)


class _LateClass(type):
    """Metaclass of a class that forwards to the one in the real module."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        return cls._real(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        # Until the real module is loaded, nothing can be an instance of its class.
        return not isinstance(sys.modules.get(NAME), _LateModule) and isinstance(instance, cls._real)

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real_module().LLMProxy, name)

    @property
    def _real(cls) -> type:
        return _real_module().LLMProxy


class LLMProxy(metaclass=_LateClass):
    """`agentlightning.LLMProxy`, loaded at its first use."""

    def __init_subclass__(cls) -> None:
        raise TypeError("to derive from LLMProxy, import agentlightning.llm_proxy before slime_agl")


class _LateModule(ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name, __doc__)
        self.__all__ = ["LLMProxy"]
        self.LLMProxy = LLMProxy

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real_module(), name)


def _real_module() -> ModuleType:
    if isinstance(sys.modules.get(NAME), _LateModule):
        del sys.modules[NAME]
    return importlib.import_module(NAME)

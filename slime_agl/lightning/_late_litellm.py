"""Load what Agent Lightning has of LiteLLM on first use.

Importing agentlightning imports its LLM proxy with LiteLLM's proxy server, and its instrumentation of LiteLLM with
LiteLLM itself. They take most of the import's time and memory, in each worker process again, and are not used here.
Stand-in modules, registered before agentlightning is imported, load the real ones on first use. Agent Lightning itself
is unchanged.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

PROXY, INSTRUMENTATION = "agentlightning.llm_proxy", "agentlightning.instrumentation.litellm"


def register() -> None:
    """Register the stand-ins, unless agentlightning is already imported."""
    if "agentlightning" not in sys.modules:
        sys.modules[PROXY] = _LateModule(PROXY, LLMProxy=LLMProxy)
        sys.modules[INSTRUMENTATION] = _LateModule(INSTRUMENTATION)


class _LateClass(type):
    """Metaclass of a class that forwards to the one in the real module."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        return cls._real(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        # Until the real module is loaded, nothing can be an instance of its class.
        return not isinstance(sys.modules.get(PROXY), _LateModule) and isinstance(instance, cls._real)

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real_module(PROXY).LLMProxy, name)

    @property
    def _real(cls) -> type:
        return _real_module(PROXY).LLMProxy


class LLMProxy(metaclass=_LateClass):
    """`agentlightning.LLMProxy`, loaded at its first use."""

    def __init_subclass__(cls) -> None:
        raise TypeError("to derive from LLMProxy, import agentlightning.llm_proxy before slime_agl")


class _LateModule(ModuleType):
    """Stands for a module until an attribute other than `own` is asked for."""

    def __init__(self, name: str, **own: object) -> None:
        super().__init__(name, __doc__)
        self.__all__ = [*own]
        vars(self).update(own)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real_module(self.__name__), name)


def _real_module(name: str) -> ModuleType:
    if isinstance(sys.modules.get(name), _LateModule):
        del sys.modules[name]
    return importlib.import_module(name)

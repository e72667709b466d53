"""Agent Lightning's LLM proxy as a name that is loaded when somebody uses it.

Importing agentlightning imports its `llm_proxy`, which imports LiteLLM's proxy server: most of the time and memory that
the whole import takes, for a server that is not used here. Registered before agentlightning is imported, a module stands
in its place whose `LLMProxy` becomes the real one at its first use. Nothing of Agent Lightning is changed.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

NAME = "agentlightning.llm_proxy"


def register() -> None:
    """Let the proxy be loaded late; nothing when agentlightning is imported already."""
    if "agentlightning" not in sys.modules:
        sys.modules[NAME] = _LateModule(NAME)


class _LateClass(type):
    """The type of a class that stands for one of the same name in the real module."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._real(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        # While the real module is not loaded, nothing can be an instance of its class.
        return not isinstance(sys.modules.get(NAME), _LateModule) and isinstance(instance, cls._real)

    def __getattr__(cls, name: str) -> Any:
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

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real_module(), name)


def _real_module() -> ModuleType:
    if isinstance(sys.modules.get(NAME), _LateModule):
        del sys.modules[NAME]
    return importlib.import_module(NAME)

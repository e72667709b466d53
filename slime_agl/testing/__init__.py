"""Fakes to test agents with: a scripted SGLang server, a tokenizer, scripted agents, slime's side, pytest fixtures.

    from slime_agl.testing import FakeSGLang, tiny_tokenizer

Names resolve when first used, so that pytest can load the plugin in every run at no cost.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Answer": "answers",
    "FakeReplay": "replay",
    "FakeSGLang": "sglang",
    "ListDataSource": "host",
    "chat_agent": "agents",
    "failing_agent": "agents",
    "importable": "paths",
    "make_args": "host",
    "pseudo_logprob": "answers",
    "save_tiny_checkpoint": "tokenizer",
    "sync_agent": "agents",
    "tiny_tokenizer": "tokenizer",
    "tool_agent": "agents",
    "tool_call_text": "tokenizer",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

"""Fakes to test agents with: a scripted SGLang server, a tokenizer, scripted agents, slime's side, pytest fixtures.

Fixtures of the pytest plugin (`pytest --fixtures` tells more):

    fake_sglang      a FakeSGLang that is started, and stopped after the test
    run_rollout      run_rollout(agent, rows, n_samples=1, evaluation=False, agl={...}, **slimes_arguments) runs an agent,
                     or its import path, as slime would, and returns the output with `samples` or `data`, and `metrics`
    rollout_args     rollout_args(**overrides): slime's arguments for rollouts on fake_sglang
    tiny_checkpoint  a directory for --hf-checkpoint with the tokenizer that fake_sglang speaks

What they are made of, for other test frameworks, from `slime_agl.testing` (`help` tells more of each):

    FakeSGLang       the server: say, call_tool, call_tools and answer_with script it; fail_next, hold, release and
                     abort_partial break it; requests, answers, unanswered and control are what it was sent
    Answer           one scripted answer, when text is not enough: its own ids, finish reason, meta_info
    FakeReplay       lets FakeSGLang give routed experts and top-p sets
    chat_agent, sync_agent, tool_agent, failing_agent
                     agents that talk, block, call tools, raise
    ListDataSource   slime's data source over a list
    make_args        slime's arguments for one engine
    importable       gives an object an import path for a while
    tiny_tokenizer, save_tiny_checkpoint, tool_call_text, pseudo_logprob
                     the language of FakeSGLang

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

"""Fakes to test agents with: a scripted SGLang server, a tokenizer, scripted agents, slime's side, pytest fixtures.

Fixtures of the pytest plugin (`pytest --fixtures` tells more):

    fake_sglang      a FakeSGLang that is started, and stopped after the test
    run_rollout      run_rollout(agent, rows, n_samples=1, evaluation=False, agl={...}, **slimes_arguments) runs an
                     agent, or its import path, as slime would, and returns the output: `samples` or `data`, `metrics`
    rollout_args     rollout_args(**overrides): slime's arguments for rollouts on fake_sglang
    tiny_checkpoint  a directory for --hf-checkpoint with the tokenizer of fake_sglang

Their parts, for other test frameworks, from `slime_agl.testing` (see `help` of each):

    FakeSGLang       the server: script it with say, call_tool, call_tools and answer_with; break it with fail_next,
                     hold, release and abort_partial; read requests, answers, unanswered and control
    Answer           a scripted answer with its own ids, finish reason or meta_info
    FakeTeacher      a server for agl.teacher; spoil its answers, read what it scored
    FakeReplay       lets FakeSGLang return routed experts and top-p sets
    chat_agent, sync_agent, tool_agent, failing_agent
                     agents that chat, block, call tools, raise
    ListDataSource   slime's data source over a list
    make_args        slime's arguments for one engine
    importable       gives an object a temporary import path
    tiny_tokenizer, save_tiny_checkpoint, tool_call_text, pseudo_logprob
                     tokenizer, checkpoint, call syntax and logprobs of FakeSGLang

Names resolve on first use, so that pytest can load the plugin in every run at no cost.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Answer": "answers",
    "FakeReplay": "replay",
    "FakeSGLang": "sglang",
    "FakeTeacher": "teacher",
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

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]: all are loaded on first use


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

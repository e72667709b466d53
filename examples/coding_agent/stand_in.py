"""Works like a model that has learnt to fix code, and sometimes gives up. For run.sh --local and tests."""

from __future__ import annotations

import re

from slime_agl.testing.tokenizer import tool_call_text

from .data import MODULES


def answer(said: list[tuple[str, str]], luck: float) -> str:
    """Ask the scout, read, edit, compact, test, finish. With luck above 0.9, give up."""
    system, task, last = said[0][1], said[1][1], said[-1][1]
    if luck > 0.9:
        return "I cannot find it."
    if "for a colleague" in system:
        if last.startswith("<tool_response>"):
            return f"The files are {', '.join(re.findall(r'[a-z]+[.]py', last))}."
        return tool_call_text("list_files", {})
    if "Your memory is nearly full." in last:
        return "I read the module and mended the faulty line. What is left: run the tests."
    if "all tests pass" in last:
        return "The faulty line is mended; the tests pass."
    if "Your notes so far:" in task:
        return tool_call_text("run_tests", {})
    name, right, wrong = _fault(task)
    turns = sum(role == "assistant" for role, _ in said)
    return [
        tool_call_text("ask_scout", {"question": f"Which file has {name}?"}),
        tool_call_text("read_file", {"path": f"{name}.py"}),
        tool_call_text("edit_file", {"path": f"{name}.py", "old": wrong, "new": right}),
    ][turns]


def _fault(task: str) -> tuple[str, str, str]:
    """Find an issue's module, the correct line, and the faulty line in its place."""
    for name, module in MODULES.items():
        for right, wrong, seen in module.faults:
            if seen in task:
                return (name, right, wrong) if wrong else (name, f"(5, 'V'), {right}", "(5, 'V'), ")
    raise ValueError(f"no issue reads {task!r}")

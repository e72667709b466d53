"""Programs like a model that has learnt to, with occasional faults. For run.sh --local and tests."""

from __future__ import annotations

import re

from slime_agl.testing.tokenizer import tool_call_text

from .data import PROBLEMS


def answer(said: list[tuple[str, str]], luck: float) -> str:
    """Return a correct program with luck below 0.5, one that fails first below 0.75, else one that is off by one."""
    question = next(text for role, text in said if role == "user")
    expression, last = _expression(question), said[-1][1]
    if not last.startswith("<tool_response>") or "Error" in last:
        if 0.5 <= luck < 0.75 and "Error" not in last:
            return tool_call_text("python", {"code": f"result = {expression}\nprint(resutl)"})
        return tool_call_text("python", {"code": f"print({expression}{' + 1' if luck >= 0.75 else ''})"})
    return f"Answer: {re.search(r'-?[0-9]+', last)[0]}"


def _expression(question: str) -> str:
    """Look up the expression that solves a problem, by its wording."""
    for problem, expression in PROBLEMS.values():
        pattern = re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(problem))
        if found := re.fullmatch(pattern, question):
            return expression.format(**found.groupdict())
    raise ValueError(f"no problem reads {question!r}")

"""Answers like a model that has learnt to calculate, with occasional errors. For run.sh --local and tests."""

from __future__ import annotations

import re

from slime_agl.testing.tokenizer import tool_call_text

from .data import STORIES


def answer(said: list[tuple[str, str]], luck: float) -> str:
    """Return the next turn: with luck below 0.4 one expression, below 0.7 in steps, else with a wrong sign."""
    question = next(text for role, text in said if role == "user")
    expression = _expression(question)
    products = re.findall(r"\d+ \* \d+", expression)
    talk = "\n".join(text for _, text in said)
    asked = re.findall(r'"expression": "(.*?)"', talk)
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", talk)
    if not asked:
        if 0.4 <= luck < 0.7:
            return "\n".join(tool_call_text("calculator", {"expression": part}) for part in products)
        wrong = expression.translate(str.maketrans("+-", "-+")) if luck >= 0.7 else expression
        return tool_call_text("calculator", {"expression": wrong})
    if asked == products:
        values = iter(results)
        return tool_call_text("calculator", {"expression": re.sub(r"\d+ \* \d+", lambda _: next(values), expression)})
    return f"Answer: {results[-1]}"


def _expression(question: str) -> str:
    """Look up the expression that solves a problem, by its story."""
    for story, expression in STORIES.values():
        pattern = re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(story))
        if found := re.fullmatch(pattern, question):
            return expression.format(**found.groupdict())
    raise ValueError(f"no story reads {question!r}")

"""Searches like a model that has learnt to, and sometimes gives up early. For run.sh --local and tests."""

from __future__ import annotations

import re

from slime_agl.testing.tokenizer import tool_call_text

FACTS = {"river": r"on the river (\w+)", "year": r"founded in (\d+)", "food": r"known for its ([a-z ]+)"}


def answer(said: list[tuple[str, str]], luck: float) -> str:
    """Follow the question's chain of names as far as the passages go; guess with luck above 0.8."""
    question = next(text for role, text in said if role == "user")
    passages = "\n".join(text for _, text in said if "<tool_response>" in text)
    if luck > 0.8:
        return "I have searched enough. Answer: unknown"
    who = re.search(r"(?:where|birthplace of|teacher of) ((?!the)\w+ \w+)", question)[1]
    chain = ["pupil of (\\w+ \\w+)"] if "teacher" in question else []
    for pattern in chain:
        if not (found := re.search(rf"{who} was a .*? {pattern}", passages)):
            return _search(who)
        who = found[1]
    if not (town := re.search(rf"{who} was a [\w ]+, born in (\w+)", passages)):
        return _search(who)
    kind = next(kind for kind in FACTS if kind in question)
    if not (fact := re.search(rf"{town[1]} is a town .*?{FACTS[kind]}", passages)):
        return _search(f"{town[1]} town {kind}")
    return f"The passages tell it. Answer: {fact[1]}"


def _search(query: str) -> str:
    return tool_call_text("search", {"query": query})

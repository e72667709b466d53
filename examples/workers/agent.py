"""An agent that writes a sentence with given words, is told which are missing, and writes it again.

Its reward compares the sentence with a library of phrases in plain Python, which keeps a core busy: in one process such
agents would wait for each other, in worker processes they run side by side. The agent is unaware of it: a plain Agent
Lightning agent on the openai client.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, TypedDict

import agentlightning as agl
from openai import AsyncOpenAI

TRIES = 2
MAX_TOKENS = 40
LONGEST = 25  # words that a sentence may have

# Phrases that everybody writes; a sentence is worth less the closer it is to one.
WORN = [
    f"{opening} {middle} {ending}"
    for opening in ("The sun was setting over", "Once upon a time there was", "It was a dark and stormy night in")
    for middle in ("the quiet village", "a beautiful garden", "the old forest", "a small town", "the deep blue sea")
    for ending in ("and the birds were singing.", "where a young girl lived.", "full of hope and wonder.")
]


class Task(TypedDict):
    """request: what is asked of the writer; words: those that the sentence must have, separated by spaces."""

    request: str
    words: str


@agl.rollout
async def workers(task: Task, llm: agl.LLM) -> float:
    """Write, hear what is missing, write again. Returns the score of the last sentence, 0 to 1."""
    words = task["words"].split()
    messages: list[Any] = [{"role": "user", "content": task["request"]}]
    sentence = ""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for _ in range(TRIES):
            completion = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=MAX_TOKENS)
            message = completion.choices[0].message
            sentence = message.content or ""
            if not (missing := missing_words(sentence, words)):
                break
            messages.append(message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": f"These words are missing: {', '.join(missing)}. Again."})
    return score(sentence, words)


def missing_words(sentence: str, words: list[str]) -> list[str]:
    """Return the words that the sentence lacks, also in other forms such as plurals."""
    said = re.findall(r"[a-z]+", sentence.lower())
    return [word for word in words if not any(one.startswith(word) for one in said)]


def score(sentence: str, words: list[str]) -> float:
    """Return the share of words it has, less for a sentence that is too long or close to a worn phrase."""
    share = 1 - len(missing_words(sentence, words)) / len(words)
    brevity = min(1.0, LONGEST / max(1, len(sentence.split())))
    worn = max(difflib.SequenceMatcher(None, sentence, phrase, autojunk=False).ratio() for phrase in WORN)
    return round(share * brevity * (1 - worn / 2), 4)

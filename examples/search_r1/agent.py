"""A question-answering agent that searches a small encyclopedia as often as it likes.

Written with the OpenAI Agents SDK; the index is BM25 by the library bm25s. It knows nothing of slime or slime_agl.
"""

from __future__ import annotations

import functools
import json
import re
import string
from pathlib import Path
from typing import Any, TypedDict

import agentlightning as agl
import bm25s
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from agents.exceptions import MaxTurnsExceeded
from openai import AsyncOpenAI

MAX_TURNS = 6
PASSAGES = 3
CORPUS = Path(__file__).with_name("corpus.jsonl")

INSTRUCTIONS = (
    "Answer the question. You do not know the facts: search for them, several times when one fact leads to the next. "
    "Then give the shortest answer in a line `Answer: ...`."
)


class Task(TypedDict):
    """question: the question; answer: the right answer."""

    question: str
    answer: str


@agl.rollout
async def search_r1(task: Task, llm: agl.LLM) -> float:
    """Search and answer in at most MAX_TURNS turns. Returns 1 for an exact match, else 0."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        agent = Agent(
            name="searcher",
            instructions=INSTRUCTIONS,
            model=OpenAIChatCompletionsModel(llm.model, client),
            tools=[search],
        )
        try:
            run = await Runner.run(
                agent, task["question"], max_turns=MAX_TURNS, run_config=RunConfig(tracing_disabled=True)
            )
        except MaxTurnsExceeded:
            return 0.0
    return float(normal(answered(str(run.final_output))) == normal(task["answer"]))


@function_tool
def search(query: str) -> str:
    """Search the encyclopedia.

    Args:
        query: a few words
    """
    return "\n".join(f"[{at}] {passage}" for at, passage in enumerate(Index.of(CORPUS).search(query), 1))


class Index:
    """BM25 over passages."""

    def __init__(self, passages: list[str]) -> None:
        self._passages = passages
        self._index = bm25s.BM25()
        self._index.index(bm25s.tokenize(passages, show_progress=False), show_progress=False)

    @staticmethod
    @functools.cache
    def of(path: Path) -> Index:
        """Return the index of a corpus, built once per process."""
        return Index([json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()])

    def search(self, query: str, count: int = PASSAGES) -> list[str]:
        """Return the best passages, best first; none for a query without a word of the corpus."""
        words: Any = bm25s.tokenize(query, show_progress=False, return_ids=False)
        if not words[0]:
            return []
        found, scores = self._index.retrieve(words, k=count, show_progress=False)
        return [self._passages[at] for at, score in zip(found[0], scores[0], strict=True) if score > 0]


def answered(text: str) -> str:
    """Return the text after the last `Answer:`, or ''."""
    found = re.findall(r"Answer:\s*(.+)", text)
    return found[-1] if found else ""


def normal(text: str) -> str:
    """Normalise case, punctuation, articles and spaces, as exact match does in question answering."""
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(word for word in plain.split() if word not in {"a", "an", "the"})

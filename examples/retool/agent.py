"""An agent that solves problems by writing Python, which runs in a sandbox.

Written with LangGraph and its OpenAI chat model. It knows nothing of slime or slime_agl.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, TypedDict

import agentlightning as agl
import httpx
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from .sandbox import run_python

MAX_TURNS = 6
PROGRAM_SECONDS = 5.0

SYSTEM = (
    "Solve the problem by writing Python. Each program runs by itself and shows what it prints. When you know the "
    "result, give it in a line `Answer: NUMBER`."
)


class Task(TypedDict):
    """question: the problem; answer: the right integer, as text."""

    question: str
    answer: str


@tool
async def python(code: str) -> str:
    """Run a Python program and show what it prints.

    Args:
        code: the program
    """
    with tempfile.TemporaryDirectory(prefix="retool-") as directory:
        ran = await run_python(["-I", "-c", code], cwd=Path(directory), seconds=PROGRAM_SECONDS)
    return ran.output or "(the program printed nothing)"


@agl.rollout
async def retool(task: Task, llm: agl.LLM) -> float:
    """Program and answer in at most MAX_TURNS turns. Returns 1 for the right number, else 0."""
    messages = [("system", SYSTEM), ("user", task["question"])]
    async with httpx.AsyncClient(timeout=None) as http:
        model = ChatOpenAI(
            model=llm.model,
            base_url=llm.endpoint,
            api_key=llm.api_key or "none",
            http_async_client=http,
        )
        try:
            state = await graph(model).ainvoke({"messages": messages}, {"recursion_limit": 2 * MAX_TURNS})
        except GraphRecursionError:
            return 0.0
    return float(answered(state["messages"][-1].text) == int(task["answer"]))


def graph(model: Any) -> Any:
    """Alternate model and tool until the model stops calling it."""
    bound = model.bind_tools([python])

    async def think(state: MessagesState) -> Any:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    def next_node(state: MessagesState) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    nodes = StateGraph(MessagesState)
    nodes.add_node("model", think)
    nodes.add_node("tools", ToolNode([python]))
    nodes.add_edge(START, "model")
    nodes.add_conditional_edges("model", next_node, ["tools", END])
    nodes.add_edge("tools", "model")
    return nodes.compile()


def answered(text: str) -> int | None:
    """Return the number after the last `Answer:`, or None."""
    found = re.findall(r"Answer:\s*(-?\d+)", text.replace(",", ""))
    return int(found[-1]) if found else None

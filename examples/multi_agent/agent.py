"""Three solvers, three rewriters and a selector work on one problem; each is rewarded for its own part.

The agents differ in the `model` that they request. The policy in training serves all names, and with
`agl.credit: per_agent` the reward named for an agent goes to that agent's tokens only.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypedDict

import agentlightning as agl
from openai import AsyncOpenAI

TEAMS = 3

SOLVE = "Solve the problem. Show the steps briefly, then give a line `Answer: NUMBER`.\n\nProblem: {question}"
REWRITE = (
    "Here are proposed solutions of a problem. Some may be wrong. Write a better one, and end with a line "
    "`Answer: NUMBER`.\n\nProblem: {question}\n\n{solutions}"
)
SELECT = (
    "Here are proposed solutions of a problem. Say in one line which is right, as `Choice: NUMBER`.\n\n"
    "Problem: {question}\n\n{solutions}"
)


class Task(TypedDict):
    """question: the problem; answer: the right integer, as text."""

    question: str
    answer: str


class Team:
    """Agents that share one endpoint. Each call is a separate conversation."""

    def __init__(self, client: AsyncOpenAI, question: str) -> None:
        self._client, self._question = client, question

    async def ask(self, name: str, wording: str, solutions: list[str]) -> str:
        """Ask the agent `name` about the problem, given the numbered solutions so far."""
        shown = "\n\n".join(f"Solution {at}:\n{text}" for at, text in enumerate(solutions, 1))
        content = wording.format(question=self._question, solutions=shown)
        message: Any = {"role": "user", "content": content}
        completion = await self._client.chat.completions.create(model=name, messages=[message])
        return completion.choices[0].message.content or ""

    async def ask_all(self, names: list[str], wording: str, solutions: list[str]) -> list[str]:
        return await asyncio.gather(*(self.ask(name, wording, solutions) for name in names))


@agl.rollout
async def multi_agent(task: Task, llm: agl.LLM) -> None:
    """Solve in parallel, rewrite in parallel, select. Emits the team's reward and one per agent.

    team: 1 if the selected solution is right. A solver or rewriter: 1 if its own solution is. The selector: the
    team's reward, but 0.5 if no solution was right.
    """
    solvers, rewriters = ([f"{role}-{at}" for at in range(1, TEAMS + 1)] for role in ("solver", "rewriter"))
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        team = Team(client, task["question"])
        solutions = await team.ask_all(solvers, SOLVE, [])
        rewritten = await team.ask_all(rewriters, REWRITE, solutions)
        choice = chosen(await team.ask("selector", SELECT, rewritten), len(rewritten))
    right = {
        name: float(answered(text) == int(task["answer"]))
        for name, text in zip(solvers + rewriters, solutions + rewritten, strict=True)
    }
    selected = right[rewriters[choice - 1]] if choice else 0.0
    selectable = any(right[name] for name in rewriters)
    credit = {"team": selected, **right, "selector": selected if selectable else 0.5}
    agl.emit_reward(credit, primary_key="team")


def answered(text: str) -> int | None:
    """Return the number after the last `Answer:`, or None."""
    found = re.findall(r"Answer:\s*(-?\d+)", text.replace(",", ""))
    return int(found[-1]) if found else None


def chosen(text: str, count: int) -> int | None:
    """Return the choice from 1 to count, or None."""
    found = re.findall(r"Choice:\s*(\d+)", text)
    return int(found[-1]) if found and 1 <= int(found[-1]) <= count else None

"""A coding agent: fixes a small repository until its tests pass, with a scout subagent and compaction of its memory.

Written with the anthropic client, as coding agents are. It knows nothing of slime or slime_agl.
"""

from __future__ import annotations

from typing import Any, TypedDict

import agentlightning as agl
from anthropic import AsyncAnthropic

from .workspace import EDITING, READING, Workspace, tool

MAX_CALLS = 12
SCOUT_CALLS = 4
COMPACT_AFTER = 6  # messages
MAX_TOKENS = 1024

SYSTEM = "You mend Python repositories. Use the tools; when the tests pass, say what you changed, without a tool."
SCOUT_SYSTEM = "You look through a repository for a colleague. Read what matters and report the facts in short."
COMPACT = "Your memory is nearly full. Write down what you found, what you changed and what is left to do."
SCOUT = tool("ask_scout", "Let a colleague read the repository and report.", "question")


class Task(TypedDict):
    """prompt: the issue; files: the repository (path to text), including `tests.py`."""

    prompt: str
    files: dict[str, str]


class Coder:
    """Conversations with one model over one workspace."""

    def __init__(self, client: AsyncAnthropic, model: str, workspace: Workspace) -> None:
        self._client, self._model, self._workspace = client, model, workspace

    async def mend(self, issue: str) -> None:
        """Work on the issue until the model stops calling tools, or after MAX_CALLS answers."""
        task = f"Mend the repository. The issue:\n{issue}"
        messages: list[Any] = [{"role": "user", "content": task}]
        tools = [*READING, *EDITING, SCOUT]
        for _ in range(MAX_CALLS):
            if len(messages) > COMPACT_AFTER:
                messages = await self._compact(task, messages, tools)
            if not await self._turn(messages, SYSTEM, tools):
                return

    async def _turn(self, messages: list[Any], system: str, tools: list[Any]) -> bool:
        """Append one answer and its tool results to `messages`. Returns whether it called a tool."""
        answer = await self._ask(messages, system, tools)
        messages.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if calls:
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": await self._use(call)} for call in calls
            ]
            messages.append({"role": "user", "content": results})
        return bool(calls)

    async def _use(self, call: Any) -> str:
        if call.name == SCOUT["name"]:
            return await self._scout(str(call.input.get("question", "")))
        return await self._workspace.use(call.name, call.input)

    async def _scout(self, question: str) -> str:
        """Run a read-only subagent in a separate conversation."""
        messages: list[Any] = [{"role": "user", "content": question}]
        for _ in range(SCOUT_CALLS):
            if not await self._turn(messages, SCOUT_SYSTEM, READING):
                return text_of(messages[-1]["content"])
        return "The scout came to no conclusion."

    async def _compact(self, task: str, messages: list[Any], tools: list[Any]) -> list[Any]:
        """Replace the messages with the model's own summary."""
        last = messages[-1]
        asked = [*messages[:-1], {**last, "content": [*last["content"], {"type": "text", "text": COMPACT}]}]
        summary = await self._ask(asked, SYSTEM, tools)
        return [{"role": "user", "content": f"{task}\n\nYour notes so far:\n{text_of(summary.content)}"}]

    async def _ask(self, messages: list[Any], system: str, tools: list[Any]) -> Any:
        return await self._client.messages.create(
            model=self._model, max_tokens=MAX_TOKENS, system=system, messages=messages, tools=tools
        )


@agl.rollout
async def coding_agent(task: Task, llm: agl.LLM) -> float:
    """Returns 1 if the repository's tests pass at the end, else 0."""
    base_url = llm.endpoint.removesuffix("/v1")  # the client adds it
    with Workspace(task["files"]) as workspace:
        async with AsyncAnthropic(base_url=base_url, api_key=llm.api_key or "none") as client:
            await Coder(client, llm.model, workspace).mend(task["prompt"])
        return float(await workspace.passes())


def text_of(content: Any) -> str:
    return "\n".join(block.text for block in content if block.type == "text")

"""Agents to record, and their later edits. Named by import path, as users name theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import agentlightning as agl
import openai

from slime_agl.testing.agents import chat_agent, failing_agent, tool_agent

adder = tool_agent()
unpaid_adder = tool_agent(reward=None)
hasty = tool_agent(max_turns=1)
two_turns = chat_agent(turns=2)
three_turns = chat_agent(turns=3)
breaks = failing_agent("the loop broke", after_turns=1)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    print("adding")
    return a + b + 1


miscounts = tool_agent({"add": add})

storms = {"to come": 0}


def client(llm: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none")


def said(completion: Any) -> str:
    return completion.choices[0].message.content


def user(text: str) -> Any:
    return {"role": "user", "content": text}


@agl.rollout
async def picky(task: Any, llm: Any) -> float:
    """Raises at an answer that it does not like."""
    async with client(llm) as ai:
        if "bad" in said(await ai.chat.completions.create(model="m", messages=[user(task["prompt"])])):
            raise RuntimeError("a bad answer")
    return 1.0


@agl.rollout
async def moody(task: Any, llm: Any) -> float:
    """Raises as long as the weather is bad, which no record tells."""
    async with client(llm) as ai:
        await ai.chat.completions.create(model="m", messages=[user(task["prompt"])])
    if storms["to come"]:
        storms["to come"] -= 1
        raise RuntimeError("bad weather")
    return 1.0


@agl.rollout
async def council(task: Any, llm: Any) -> None:
    """Two drafts of one call, three advisers with the same question, a word with each, and a chair who is told all."""
    async with client(llm) as ai:
        drafts = await ai.chat.completions.create(model="m", n=2, messages=[user(task["prompt"])])
        heard = [choice.message.content for choice in drafts.choices]

        async def advise(name: str) -> str:
            talk: list[Any] = [user("Advise!")]
            talk.append(
                {"role": "assistant", "content": said(await ai.chat.completions.create(model=name, messages=talk))}
            )
            talk.append(user("Sure?"))
            return said(await ai.chat.completions.create(model=name, messages=talk))

        heard += await asyncio.gather(*(advise(f"adviser-{at}") for at in range(3)))
        heard.append(said(await ai.chat.completions.create(model="m", messages=[user("; ".join(heard))])))
    agl.emit_reward({"right": float(len(set(heard)) == 6), "told": 0.5}, primary_key="right")


@agl.rollout
async def speller(task: Any, llm: Any) -> float:
    """Keeps token ids itself, and asks with them."""
    async with client(llm) as ai:
        ids = [72, 73]
        for _ in range(2):
            done = await ai.completions.create(
                model="m", prompt=ids, max_tokens=8, extra_body={"return_token_ids": True}
            )
            ids = [*ids, *done.choices[0].model_dump()["token_ids"], 74]
    return 1.0


@agl.rollout
async def undaunted(task: Any, llm: Any) -> float:
    """Asks something else after a while, and is not stopped by a refusal."""
    async with client(llm) as ai:
        await ai.chat.completions.create(model="m", messages=[user(task["prompt"])])
        try:
            await ai.chat.completions.create(model="m", messages=[user("something else")])
        except openai.BadRequestError as error:
            return 0.25 if error.response.headers["x-should-retry"] == "false" else 0.5
    return 1.0


@agl.rollout
async def sleeper(task: Any, llm: Any) -> float:
    """Never ends."""
    await asyncio.get_running_loop().create_future()
    return 1.0


def generous(task: Any, execution: Any) -> float:
    return 1.0


def strict(task: Any, execution: Any) -> float:
    return 0.5


def broken(task: Any, execution: Any) -> float:
    raise KeyError("no such rubric")


async def house_rule(args: Any, sample: Any, **kwargs: Any) -> float:
    """A --custom-rm-path that looks at the row."""
    return float(sample.label == "3" and sample.prompt == "1 + 2?")

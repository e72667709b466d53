"""Runners as Agent Lightning starts them: `runner_process.py AGENT COUNT`, with AGL_SERVER_HOST and AGL_SERVER_PORT."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import agentlightning as agl
import openai


def _ask(llm: Any, messages: list[dict[str, Any]]) -> str:
    with openai.OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        answer = client.chat.completions.create(model=llm.model, messages=messages)
    return answer.choices[0].message.content or ""


@agl.rollout
def one_turn(task: dict[str, Any], llm: agl.LLM) -> float:
    _ask(llm, [{"role": "user", "content": task["prompt"]}])
    return 0.5


@agl.rollout
async def emits(task: dict[str, Any], llm: agl.LLM) -> None:
    """Two turns with a reward behind each."""
    messages: list[Any] = [{"role": "user", "content": task["prompt"]}]
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        for number in (1, 2):
            answer = await client.chat.completions.create(model=llm.model, messages=messages)
            agl.emit_reward(number / 10)
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content},
                {"role": "user", "content": "Go on."},
            ]


@agl.rollout
def fails(task: dict[str, Any], llm: agl.LLM) -> float:
    _ask(llm, [{"role": "user", "content": task["prompt"]}])
    raise ValueError("no such luck")


@agl.rollout
def calls_nothing(task: dict[str, Any], llm: agl.LLM) -> float:
    return 1.0


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@agl.rollout
async def autogen(task: dict[str, Any], llm: agl.LLM) -> float:
    """As in Agent Lightning's calc_x: an AutoGen agent with a tool."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelFamily, ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info = ModelInfo(
        vision=False, function_calling=True, json_output=False, family=ModelFamily.UNKNOWN, structured_output=False
    )
    client = OpenAIChatCompletionClient(
        model=llm.model, base_url=llm.endpoint, api_key=llm.api_key or "none", model_info=info
    )
    agent = AssistantAgent("calc", model_client=client, tools=[add], max_tool_iterations=3)
    done = await agent.run(task=task["prompt"])
    await client.close()
    return float("10" in str(done.messages[-1].to_text()))


@agl.rollout
def langgraph(task: dict[str, Any], llm: agl.LLM) -> float:
    import warnings

    from langchain_openai import ChatOpenAI

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langgraph.prebuilt import create_react_agent

        model = ChatOpenAI(model=llm.model, base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0)
        graph = create_react_agent(model, [add])
    done = graph.invoke({"messages": [("user", task["prompt"])]})
    return float("10" in done["messages"][-1].content)


@agl.llm_rollout
async def plain_async(task: dict[str, Any], llm: agl.LLM) -> float:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key="dummy", max_retries=0) as client:
        answer = await client.responses.create(model=llm.model, input=task["prompt"])
    return float("10" in answer.output_text)


@agl.rollout
def templated(task: dict[str, Any], llm: agl.LLM, prompt_template: agl.PromptTemplate) -> float:
    return float("10" in _ask(llm, [{"role": "user", "content": prompt_template.format(question=task["prompt"])}]))


class WithTemplate(agl.LitAgent[dict[str, Any]]):
    def rollout(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        prompt = resources["greeting"].format(name=task["prompt"])
        llm = resources["main_llm"].with_attempted_rollout(rollout)
        _ask(llm, [{"role": "user", "content": prompt}])
        return 1.0


AGENTS: dict[str, Any] = {
    "one_turn": one_turn,
    "emits": emits,
    "fails": fails,
    "calls_nothing": calls_nothing,
    "autogen": autogen,
    "langgraph": langgraph,
    "plain_async": plain_async,
    "templated": templated,
    "with_template": WithTemplate(),
}


def main() -> None:
    os.environ["AGL_CURRENT_ROLE"] = "runner"
    agent = AGENTS[sys.argv[1]]
    tracer = agl.OtelTracer()
    trainer = agl.Trainer(
        n_runners=int(sys.argv[2]),
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05, interval_jitter=0.01, heartbeat_interval=0.3),
    )
    trainer.fit(agent, [])


if __name__ == "__main__":
    main()

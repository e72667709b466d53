"""Agent frameworks as their users write them: a conversation with tools is one segment of the engine's own tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

CALLS = [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frameworks that report home are told not to."""
    for name in ("OPENAI_AGENTS_DISABLE_TRACING", "LANGSMITH_TRACING", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "false" if name == "LANGSMITH_TRACING" else "1")


@pytest.mark.parametrize("protocol", ["responses", "chat"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_openai_agents(bench, script, fake_sglang, quiet, protocol, streamed):
    agents = pytest.importorskip("agents")
    script("<think>\nLet me.\n</think>\n\n" + "On it.", CALLS, [("add", {"a": 3, "b": 7})], "Ten.")
    client = await bench.open()
    kind = agents.OpenAIResponsesModel if protocol == "responses" else agents.OpenAIChatCompletionsModel
    agent = agents.Agent(
        name="adder", instructions="Use tools.", model=kind("m", client), tools=[agents.function_tool(add)]
    )
    told: list[Any] = []
    for said in ("Can you add?", "Then add."):
        told.append({"role": "user", "content": said})
        if streamed:
            run = agents.Runner.run_streamed(agent, told)
            _ = [event async for event in run.stream_events()]
        else:
            run = await agents.Runner.run(agent, told)
        told = run.to_input_list()
    assert run.final_output == "Ten."
    assert (await bench.prove(fake_sglang)).one_segment(4)


async def test_openai_agents_by_previous_response(bench, script, fake_sglang, quiet):
    agents = pytest.importorskip("agents")
    script(CALLS, "Done.", "Sure.")
    model = agents.OpenAIResponsesModel("m", await bench.open())
    agent = agents.Agent(name="adder", instructions="Use tools.", model=model, tools=[agents.function_tool(add)])
    run = await agents.Runner.run(agent, "Add.", auto_previous_response_id=True)
    run = await agents.Runner.run(agent, "Sure?", previous_response_id=run.last_response_id)
    assert run.final_output == "Sure."
    assert (await bench.prove(fake_sglang)).one_segment(3)


@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_langgraph(bench, script, fake_sglang, quiet, protocol):
    pytest.importorskip("langgraph")
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    script(CALLS, [("add", {"a": 3, "b": 7})], "Ten.")
    await bench.open()
    http = httpx.AsyncClient()
    model = ChatOpenAI(
        model="m",
        base_url=bench.url(),
        api_key=bench.keys["at-1"],
        max_retries=0,
        http_async_client=http,
        use_responses_api=protocol == "responses",
    ).bind_tools([add])

    async def think(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", think)
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END])
    graph.add_edge("tools", "model")
    told = [("system", "Use tools."), ("user", "Add.")]
    async with http:
        state = await graph.compile().ainvoke({"messages": told})
    assert state["messages"][-1].text == "Ten."
    assert (await bench.prove(fake_sglang)).one_segment(3)


async def test_autogen(bench, script, fake_sglang):
    pytest.importorskip("autogen_agentchat")
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    script(CALLS, [("add", {"a": 3, "b": 7})], "Ten.", "Sure.")
    await bench.open()
    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "family": "unknown",
        "structured_output": True,
    }
    client = OpenAIChatCompletionClient(
        model="m", base_url=bench.url(), api_key=bench.keys["at-1"], model_info=info, max_retries=0
    )
    agent = AssistantAgent("adder", model_client=client, tools=[add], max_tool_iterations=3)
    assert (await agent.run(task="Add.")).messages[-1].content == "Ten."
    await agent.run(task="Sure?")
    await client.close()
    assert (await bench.prove(fake_sglang)).one_segment(4)


def smol_model(bench: Any) -> Any:
    from smolagents import OpenAIServerModel

    return OpenAIServerModel("m", api_base=bench.url(), api_key=bench.keys["at-1"], client_kwargs={"max_retries": 0})


async def test_smolagents_that_call_tools(bench, script, fake_sglang):
    """Their requests insist on a call, which is begun for the model; they tell calls as text, which names their ids."""
    smolagents = pytest.importorskip("smolagents")
    opened = "<tool_call>\n" + '{"name": "'
    for name, arguments in (("add", '{"a": 1, "b": 2}'), ("final_answer", '{"answer": "3"}')):
        script(f'{opened}{name}", "arguments": {arguments}}}\n</tool_call>'.removeprefix(opened))
    await bench.open()
    model = smol_model(bench)
    agent = smolagents.ToolCallingAgent(tools=[smolagents.tool(add)], model=model, verbosity_level=-1)
    assert await asyncio.to_thread(agent.run, "1 + 2?") == "3"
    model.client.close()
    assert (await bench.prove(fake_sglang)).one_segment(2)


async def test_smolagents_that_write_code(bench, fake_sglang):
    """They add to what the model said what became of it, so each step is a prompt of its own."""
    smolagents = pytest.importorskip("smolagents")
    fake_sglang.say("Thought: add.\n<code>\nx = 1 + 2\nprint(x)\n</code>\nand more")
    fake_sglang.say("Thought: done.\n<code>\nfinal_answer(x)\n</code>\n")
    await bench.open()
    model = smol_model(bench)
    agent = smolagents.CodeAgent(tools=[], model=model, verbosity_level=-1)
    assert await asyncio.to_thread(agent.run, "1 + 2?") == 3
    model.client.close()
    proof = await bench.prove(fake_sglang)
    assert (proof.segments, proof.forks, proof.trained) == (2, ["history_edited"], proof.sampled)

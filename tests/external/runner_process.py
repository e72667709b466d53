"""Runners as Agent Lightning starts them: `runner_process.py AGENT COUNT`, with AGL_SERVER_HOST and AGL_SERVER_PORT."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["AGL_CURRENT_ROLE"] = "runner"
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


class WithTemplate(agl.LitAgent[dict[str, Any]]):
    def rollout(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> float:
        prompt = resources["greeting"].format(name=task["prompt"])
        llm = resources["main_llm"].with_attempted_rollout(rollout)
        _ask(llm, [{"role": "user", "content": prompt}])
        return 1.0


def main() -> None:
    agent: Any = {"with_template": WithTemplate()}.get(sys.argv[1]) or globals()[sys.argv[1]]
    tracer = agl.OtelTracer()
    trainer = agl.Trainer(
        n_runners=int(sys.argv[2]),
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05, interval_jitter=0.01, heartbeat_interval=0.3),
    )
    trainer.fit(agent, [])


if __name__ == "__main__":
    main()

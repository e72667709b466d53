"""`Trainer.fit` with agents of every kind, one for each row: `agents_program.py PORT CHECKPOINT FOLDER`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["AGL_SERVER_PORT"] = sys.argv[1]

import agentlightning as agl

import slime_agl
from tests.external.runner_process import AGENTS

KINDS = ("autogen", "langgraph", "plain_async", "one_turn", "emits", "templated", "with_template")


class Each(agl.LitAgent[dict[str, Any]]):
    """Runs the agent that a task names, as the runner would: sync or async, with the resources as they came."""

    async def rollout_async(self, task: dict[str, Any], resources: agl.NamedResources, rollout: agl.Rollout) -> Any:
        agent = AGENTS[task["agent"]]
        if agent.is_async():
            return await agent.rollout_async(task, resources, rollout)
        return agent.rollout(task, resources, rollout)


def main() -> None:
    tracer = agl.OtelTracer()
    config = {
        "hf_checkpoint": sys.argv[2],
        "num_rollout": 1,
        "rollout_batch_size": len(KINDS),
        "n_samples_per_prompt": 2,
    }
    trainer = agl.Trainer(
        algorithm=slime_agl.SLIME(
            {**config, "n_samples_per_prompt": 2}, slime_dir=Path(__file__).with_name("checkout")
        ),
        n_runners=2,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05, interval_jitter=0.01),
        initial_resources={
            "question": agl.PromptTemplate(template="Please add: {question}", engine="f-string"),
            "greeting": agl.PromptTemplate(template="Hello {name}", engine="f-string"),
        },
    )
    trainer.fit(Each(), [{"agent": kind, "prompt": "add 3 and 7"} for kind in KINDS])
    told = [
        [rollout.input["agent"], rollout.status, agl.find_final_reward(list(spans))]
        for rollout in asyncio.run(trainer.store.query_rollouts())
        for spans in [asyncio.run(trainer.store.query_spans(rollout.rollout_id))]
    ]
    (Path(sys.argv[3]) / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

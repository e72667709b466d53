"""`Trainer.fit` with the stand-in's checkout: `checkout_program.py PORT CHECKPOINT WORK_DIR [shm]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["AGL_SERVER_PORT"] = sys.argv[1]

import agentlightning as agl
import openai

import slime_agl


@agl.rollout
async def agent(task: dict[str, Any], llm: agl.LLM, prompt_template: agl.PromptTemplate) -> None:
    content = prompt_template.format(question=task["question"])
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": content}])
    agl.emit_reward(task["worth"])


def main() -> None:
    tracer, shared = agl.OtelTracer(), sys.argv[4:] == ["shm"]
    config = {
        "hf_checkpoint": sys.argv[2],
        "num_rollout": 2,
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "colocate": True,
    }
    folder = Path(__file__).with_name("checkout")
    trainer = agl.Trainer(
        algorithm=slime_agl.SLIME(config, slime_dir=folder, env={"EXTRA": "passed"}, work_dir=sys.argv[3]),
        n_runners=1 if shared else 2,
        strategy={"type": "shm", "main_thread": "algorithm"} if shared else None,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05, interval_jitter=0.01),
        initial_resources={"prompt": agl.PromptTemplate(template="Say: {question}", engine="f-string")},
    )
    trainer.fit(agent, [{"question": "a", "worth": 0.25}, {"question": "b", "worth": 0.75}])


if __name__ == "__main__":
    main()

"""A whole `Trainer.fit` with real processes: `fit_program.py PORT FOLDER`; writes what its store holds.

Ends once the mean reward of five steps shows that the model has learned.
"""

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
from slime_agl.local.train.boxes import rows
from slime_agl.testing.boxes import boxes


async def held(store: agl.LightningStore) -> list[dict[str, Any]]:
    found = []
    for rollout in await store.query_rollouts():
        attempts = await store.query_attempts(rollout.rollout_id)
        spans = await store.query_spans(rollout.rollout_id)
        turns = [span for span in spans if "slime_agl.turn.index" in span.attributes]
        found.append(
            {
                "rollout_id": rollout.rollout_id,
                "mode": rollout.mode,
                "status": rollout.status,
                "input": rollout.input,
                "attempts": [attempt.attempt_id for attempt in attempts],
                "reward": agl.find_final_reward(list(spans)),
                "step": (rollout.metadata or {})["slime_agl.step"],
                "resources": (rollout.metadata or {})["slime_agl.resources"],
                "turns": [span.attributes["gen_ai.response.id"] for span in turns],
                "versions": [span.attributes["slime_agl.turn.weight_versions"] for span in turns],
                "span_attempts": sorted({span.attempt_id for span in spans}),
            }
        )
    return found


def main() -> None:
    folder, tracer = Path(sys.argv[2]), agl.OtelTracer()
    config = {
        "rollout_batch_size": 6,
        "n_samples_per_prompt": 8,
        "num_rollout": 30,
        "target_reward": 0.36,
        "seed": int(os.environ.get("SEED", "0")),
        "eval_interval": 4,
        "agl": {"record_dir": str(folder / "record")},
    }
    trainer = agl.Trainer(
        algorithm=slime_agl.SLIME(config, driver="local"),
        n_runners=4,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05, interval_jitter=0.01),
    )
    trainer.fit(boxes, rows(), val_dataset=rows()[:2])
    (folder / "store.json").write_text(json.dumps(asyncio.run(held(trainer.store))))


if __name__ == "__main__":
    main()

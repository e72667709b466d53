"""Train an Agent Lightning agent with its own Trainer, and slime behind it.

python train.py --local     no GPU, no slime: a tiny model on this machine's CPU learns in a few minutes
python train.py             Qwen3-4B on the GPUs of one machine, in slime's container image
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else the next import asks the network for prices

import agentlightning as agl
from agent import boxes, tasks

import slime_agl

LOCAL: dict[str, Any] = {
    "rollout_batch_size": 6,
    "n_samples_per_prompt": 12,
    "num_rollout": 40,
    "target_reward": 0.9,
    "eval_interval": 10,
}
CHECKPOINTS = os.environ.get("CKPT_DIR", "/root")
GPUS: dict[str, Any] = {
    "hf_checkpoint": f"{CHECKPOINTS}/Qwen3-4B",
    "ref_load": f"{CHECKPOINTS}/Qwen3-4B_torch_dist",
    "load": f"{CHECKPOINTS}/Qwen3-4B_boxes",
    "save": f"{CHECKPOINTS}/Qwen3-4B_boxes",
    "save_interval": 20,
    "colocate": True,
    "actor_num_nodes": 1,
    "actor_num_gpus_per_node": 8,
    "rollout_num_gpus_per_engine": 2,
    "num_rollout": 100,
    "rollout_batch_size": 16,
    "n_samples_per_prompt": 8,
    "global_batch_size": 128,
    "rollout_max_response_len": 2048,
    "rollout_max_context_len": 16384,
    "use_dynamic_batch_size": True,
    "max_tokens_per_gpu": 16384,
    "advantage_estimator": "grpo",
    "eps_clip": 0.2,
    "eps_clip_high": 0.28,
    "lr": 1e-6,
    "sglang_tool_call_parser": "qwen25",
    "sglang_mem_fraction_static": 0.7,
    # The model's own shape, as in slime's scripts/models/qwen3-4B.sh.
    "swiglu": True,
    "num_layers": 36,
    "hidden_size": 2560,
    "ffn_hidden_size": 9728,
    "num_attention_heads": 32,
    "group_query_attention": True,
    "num_query_groups": 8,
    "use_rotary_position_embeddings": True,
    "disable_bias_linear": True,
    "normalization": "RMSNorm",
    "norm_epsilon": 1e-6,
    "rotary_base": 1000000,
    "vocab_size": 151936,
    "kv_channels": 128,
    "qk_layernorm": True,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local", action="store_true", help="no GPU and no slime: a tiny model on the CPU")
    parser.add_argument("--steps", type=int, help="training steps")
    parser.add_argument("--runners", type=int, default=4, help="processes that run the agent")
    given = parser.parse_args()

    config = dict(LOCAL if given.local else GPUS)
    if given.steps is not None:
        config["num_rollout"] = given.steps
    tracer = agl.OtelTracer()
    trainer = agl.Trainer(
        algorithm=slime_agl.SLIME(config, driver="local" if given.local else "train.py"),
        n_runners=given.runners,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.1, interval_jitter=0.02),  # the default is 5 s
    )
    trainer.fit(boxes, tasks(), val_dataset=tasks())


if __name__ == "__main__":
    main()

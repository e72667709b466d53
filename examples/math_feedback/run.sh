#!/usr/bin/env bash
# Train Qwen3-4B on the arithmetic agent, with slime, on the GPUs of one machine.
#
#   run.sh            inside slime's container image, with the checkpoints in place
#   run.sh --local    no GPU, no slime: the same rollout with SmolLM2-135M on this machine's CPU
#   run.sh --print    slime's arguments, one per line
#
# Variables: SLIME_DIR, MEGATRON_DIR, CKPT_DIR, NUM_GPUS (defaults: the container's paths and all GPUs).
set -euo pipefail

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "$HERE/../common.sh"

# A laptop-sized model is good enough for this agent: --local runs scripts/demo.
LOCAL=(-m slime_agl.cli.main demo)
LOCAL_EXTRAS=()

# The agent's few tokens per turn leave none for thinking.
DATA_ARGS+=(--apply-chat-template-kwargs '{"enable_thinking": false}')
ROLLOUT_ARGS+=(--rollout-max-response-len 512 --rollout-max-context-len 4096)
EVAL_ARGS+=(--eval-max-response-len 512)
PERF_ARGS+=(--max-tokens-per-gpu 9216)

main "$@"

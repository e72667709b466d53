#!/usr/bin/env bash
# Train Qwen3-4B to solve problems by writing Python, with slime, on the GPUs of one machine.
#
#   run.sh            inside slime's container image, with the checkpoints in place
#   run.sh --local    no GPU, no slime, no model: the same rollout on this machine's CPU
#   run.sh --print    slime's arguments, one per line
#
# Variables: SLIME_DIR, MEGATRON_DIR, CKPT_DIR, NUM_GPUS (defaults: the container's paths and all GPUs).
set -euo pipefail

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "$HERE/../common.sh"

NEEDS+=(langgraph langgraph langchain_openai langchain-openai)

main "$@"

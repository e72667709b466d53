#!/usr/bin/env bash
# Train Qwen3-4B as the model of a coding program, with slime, on the GPUs of one machine.
#
#   run.sh            inside slime's container image, with the checkpoints in place
#   run.sh --local    no GPU, no slime, no model: the real program on this machine, with scripted answers;
#                     --harness NAME takes another program than mini_swe_agent, or `own` the one of this folder
#   run.sh --print    slime's arguments, one per line
#
# Variables: SLIME_DIR, MEGATRON_DIR, CKPT_DIR, NUM_GPUS (defaults: the container's paths and all GPUs).
set -euo pipefail

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "$HERE/../common.sh"

# Programs bring long prompts, and some start conversations of their own: an execution may yield several Samples.
ROLLOUT_ARGS+=(
    --rollout-batch-size 8
    --global-batch-size 64
    --rollout-max-context-len 32768
)

main "$@"

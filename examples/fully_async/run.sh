#!/usr/bin/env bash
# Train Qwen3-4B on a running total, with slime's asynchronous driver, on the GPUs of one machine.
#
#   run.sh            inside slime's container image, with the checkpoints in place
#   run.sh --local    no GPU, no slime, no model: the same rollout on this machine's CPU
#   run.sh --print    slime's arguments, one per line
#
# Variables: SLIME_DIR, MEGATRON_DIR, CKPT_DIR, NUM_GPUS (defaults: the container's paths and all GPUs).
set -euo pipefail

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "$HERE/../common.sh"

# Half of the GPUs train, the others sample: train_async.py does not colocate them.
DRIVER=train_async.py
ACTOR_GPUS="$((NUM_GPUS / 2))"
PLACEMENT_ARGS=(
    --actor-num-nodes 1
    --actor-num-gpus-per-node "$ACTOR_GPUS"
    --rollout-num-gpus "$((NUM_GPUS - ACTOR_GPUS))"
)
PERF_ARGS+=(--tensor-model-parallel-size "$((ACTOR_GPUS % 2 ? 1 : 2))")
SGLANG_ARGS+=(--rollout-num-gpus-per-engine 1)

if [ $# -eq 0 ] && [ "$NUM_GPUS" = 1 ]; then
    fail "one GPU cannot train and sample at once; try: $0 --local"
fi

main "$@"

#!/usr/bin/env bash
# Train Qwen3-4B on a running total, with slime's asynchronous driver, on the GPUs of one machine.
#
#   run.sh            inside slime's container image, with the checkpoints in place; at least two GPUs
#   run.sh --local    no GPU, no slime: the same rollout with SmolLM2-135M on this machine's CPU
#   run.sh --print    slime's arguments, one per line
#
# Variables: SLIME_DIR, MEGATRON_DIR, CKPT_DIR, MODEL, NUM_GPUS (defaults: the container's paths, Qwen3-4B, all GPUs).
set -euo pipefail

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"

# The flags that matter here. common.sh has those that are the same for all examples.
FLAGS=(
    --rollout-function-path slime_agl.rollout.generate
    --custom-rm-path slime_agl.reward.custom_rm
    --custom-reward-post-process-path slime_agl.reward.normalize_rewards
    --custom-config-path "$HERE/agl.yaml"

    # Rows: the agent writes its own messages, so there is no --apply-chat-template.
    --prompt-data "$HERE/train.jsonl"
    --input-key prompt
    --label-key label
    --metadata-key metadata
    --rollout-shuffle

    # A step: prompts, executions of each, and what the optimizer takes at once.
    --num-rollout 100
    --rollout-batch-size 16
    --n-samples-per-prompt 8
    --global-batch-size 128

    # A turn has at most --rollout-max-response-len tokens, a whole conversation --rollout-max-context-len.
    --rollout-max-response-len 512
    --rollout-max-context-len 8192
    --rollout-temperature 1

    # The agent's few tokens per turn leave none for thinking.
    --apply-chat-template-kwargs '{"enable_thinking": false}'
)

COMMON="$HERE/common.sh"  # in a copy that `slime-agl new` made
[ -f "$COMMON" ] || COMMON="$HERE/../common.sh"
source "$COMMON"

# train_async.py does not colocate: half of the GPUs train, the others sample. agl.yaml has agl.async.
DRIVER=train_async.py
ACTOR_GPUS="$((NUM_GPUS / 2))"
PLACEMENT_ARGS=(
    --actor-num-nodes 1
    --actor-num-gpus-per-node "$ACTOR_GPUS"
    --rollout-num-gpus "$((NUM_GPUS - ACTOR_GPUS))"
)
PERF_ARGS+=(--tensor-model-parallel-size "$((ACTOR_GPUS % 2 ? 1 : 2))")
SGLANG_ARGS+=(--rollout-num-gpus-per-engine 1)
LOCAL_EXTRAS=()

if [ $# -eq 0 ] && [ "$NUM_GPUS" = 1 ]; then
    fail "one GPU cannot train and sample at once; try: $0 --local"
fi

main "$@"

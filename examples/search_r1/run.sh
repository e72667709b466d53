#!/usr/bin/env bash
# Train Qwen3-4B to search before it answers, with slime, on the GPUs of one machine.
#
#   run.sh            inside slime's container image, with the checkpoints in place
#   run.sh --local    no GPU, no slime, scripted answers: no model that fits a laptop calls tools
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
    --rollout-max-response-len 2048
    --rollout-max-context-len 16384
    --rollout-temperature 1

    # The model's syntax of tool calls, in SGLang's words.
    --sglang-tool-call-parser qwen25
)

COMMON="$HERE/common.sh"  # in a copy that `slime-agl new` made
[ -f "$COMMON" ] || COMMON="$HERE/../common.sh"
source "$COMMON"

NEEDS+=(agents openai-agents bm25s bm25s)

main "$@"

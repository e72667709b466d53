#!/usr/bin/env bash
# Train Qwen3-4B on the arithmetic agent, with slime, on the GPUs of one machine.
#
#   run.sh            inside slime's container image, with the checkpoints below in place
#   run.sh --local    no GPU, no slime: the same rollout on this machine's CPU
#
# Variables: SLIME_DIR, MEGATRON_DIR, CKPT_DIR, NUM_GPUS (defaults: the container's paths and all GPUs).
set -euo pipefail

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
REPO="$(cd -- "$HERE/../.." && pwd)"

if [ "${1:-}" = --local ]; then
    exec "$REPO/scripts/demo" "${@:2}"
fi

SLIME_DIR="${SLIME_DIR:-/root/slime}"
MEGATRON_DIR="${MEGATRON_DIR:-/root/Megatron-LM}"
CKPT_DIR="${CKPT_DIR:-/root}"
NUM_GPUS="${NUM_GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)}"
NVLINKS="$(nvidia-smi topo -m 2>/dev/null | grep -c 'NV[0-9]' || true)"

fail() { echo "run.sh: $*" >&2; exit 1; }
[ "$NUM_GPUS" -ge 1 ] || fail "found no GPU; try: $0 --local"
[ -f "$SLIME_DIR/train.py" ] || fail "no slime in $SLIME_DIR; set SLIME_DIR to its checkout"
[ -d "$CKPT_DIR/Qwen3-4B" ] || fail "no checkpoint in $CKPT_DIR/Qwen3-4B; set CKPT_DIR to the folder that holds it"
python3 -c 'import agentlightning' 2>/dev/null || fail "agentlightning is missing; run: pip install -e $REPO"

# shellcheck source=/dev/null
source "$SLIME_DIR/scripts/models/qwen3-4B.sh"  # sets MODEL_ARGS

AGENT_ARGS=(
    --rollout-function-path slime_agl.rollout.generate
    --custom-rm-path slime_agl.reward.custom_rm
    --custom-reward-post-process-path slime_agl.reward.normalize_rewards
    --custom-config-path "$HERE/agl.yaml"
)

# No --apply-chat-template: the agent writes its own messages, the row's prompt is its question.
DATA_ARGS=(
    --prompt-data "$HERE/train.jsonl"
    --input-key prompt
    --label-key label
    --metadata-key metadata
    --rollout-shuffle
    --apply-chat-template-kwargs '{"enable_thinking": false}'  # the agent allows itself only a few tokens a turn
)

CKPT_ARGS=(
    --hf-checkpoint "$CKPT_DIR/Qwen3-4B"
    --ref-load "$CKPT_DIR/Qwen3-4B_torch_dist"
    --load "$CKPT_DIR/Qwen3-4B_math_feedback"
    --save "$CKPT_DIR/Qwen3-4B_math_feedback"
    --save-interval 20
)

# A turn has at most --rollout-max-response-len tokens, a whole conversation --rollout-max-context-len.
ROLLOUT_ARGS=(
    --num-rollout 100
    --rollout-batch-size 16
    --n-samples-per-prompt 8
    --global-batch-size 128
    --rollout-max-response-len 512
    --rollout-max-context-len 4096
    --rollout-temperature 1
    --balance-data
)

EVAL_ARGS=(
    --eval-interval 20
    --eval-prompt-data math_feedback "$HERE/eval.jsonl"
    --n-samples-per-eval-prompt 4
    --eval-max-response-len 512
)

PERF_ARGS=(
    --tensor-model-parallel-size "$((NUM_GPUS >= 2 ? 2 : 1))"
    --sequence-parallel
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --use-dynamic-batch-size
    --max-tokens-per-gpu 9216
)

GRPO_ARGS=(
    --advantage-estimator grpo
    --use-kl-loss
    --kl-loss-coef 0.00
    --kl-loss-type low_var_kl
    --entropy-coef 0.00
    --eps-clip 0.2
    --eps-clip-high 0.28
)

OPTIMIZER_ARGS=(
    --optimizer adam
    --lr 1e-6
    --lr-decay-style constant
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.98
)

# A session key keeps the turns of an agent on the engine that holds their prefix.
SGLANG_ARGS=(
    --rollout-num-gpus-per-engine "$((NUM_GPUS >= 2 ? 2 : 1))"
    --sglang-mem-fraction-static 0.7
    --router-policy consistent_hashing
)

MISC_ARGS=(
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --accumulate-allreduce-grads-in-fp32
    --attention-softmax-in-fp32
    --attention-backend flash
)

export MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
RUNTIME_ENV="$(python3 - "$MEGATRON_DIR:$REPO:$REPO/examples" "$((NVLINKS > 0))" <<'PY'
import json, sys

print(json.dumps({"env_vars": {
    "PYTHONPATH": sys.argv[1],
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NCCL_NVLS_ENABLE": sys.argv[2],
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}}))
PY
)"

ray start --head --node-ip-address "$MASTER_ADDR" --num-gpus "$NUM_GPUS" \
    --disable-usage-stats --dashboard-host=127.0.0.1 --dashboard-port=8265
trap 'ray stop' EXIT

cd -- "$SLIME_DIR"
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="$RUNTIME_ENV" -- \
    python3 train.py \
    --actor-num-nodes 1 \
    --actor-num-gpus-per-node "$NUM_GPUS" \
    --colocate \
    "${MODEL_ARGS[@]}" \
    "${AGENT_ARGS[@]}" \
    "${DATA_ARGS[@]}" \
    "${CKPT_ARGS[@]}" \
    "${ROLLOUT_ARGS[@]}" \
    "${EVAL_ARGS[@]}" \
    "${PERF_ARGS[@]}" \
    "${GRPO_ARGS[@]}" \
    "${OPTIMIZER_ARGS[@]}" \
    "${SGLANG_ARGS[@]}" \
    "${MISC_ARGS[@]}"

# What is the same for all examples: paths, the model, the trainer's settings, Ray. A run.sh sets HERE to its folder
# and FLAGS to the flags that matter to it, sources this, and may change any array before it calls `main`.
# shellcheck shell=bash

NAME="$(basename -- "$HERE")"
PARENT="$(cd -- "$HERE/.." && pwd)"        # on the import path: the agent is $NAME.agent
COMMON_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
REPO="$(cd -- "$COMMON_DIR/.." && pwd)"    # the clone of slime_agl, unless this is a copy
SLIME_DIR="${SLIME_DIR:-/root/slime}"
MEGATRON_DIR="${MEGATRON_DIR:-/root/Megatron-LM}"
CKPT_DIR="${CKPT_DIR:-/root}"
NUM_GPUS="${NUM_GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)}"
TP="$((NUM_GPUS >= 2 ? 2 : 1))"
MODEL="${MODEL:-Qwen3-4B}"                      # the checkpoints are $CKPT_DIR/$MODEL and $CKPT_DIR/${MODEL}_torch_dist
MODEL_SCRIPT="${MODEL_SCRIPT:-qwen3-4B.sh}"     # in slime's scripts/models, sets MODEL_ARGS
DRIVER=train.py

fail() { echo "run.sh: $*" >&2; exit 1; }

is_clone() { [ -x "$REPO/scripts/install" ] && [ -d "$REPO/slime_agl" ]; }

# Run the example without GPU or slime: in the environment of scripts/install in the clone, with python3 in a copy;
# $SLIME_AGL_PYTHON names another. LOCAL: python's arguments.
LOCAL=("$COMMON_DIR/local.py" "$HERE")
run_locally() {
    local python="${SLIME_AGL_PYTHON:-python3}"
    if [ -z "${SLIME_AGL_PYTHON:-}" ] && is_clone; then
        "$REPO/scripts/install" "${LOCAL_EXTRAS[@]}"
        python="${SLIME_AGL_VENV:-$REPO/.venv}/bin/python"
    fi
    need_packages "$python"
    PYTHONPATH="$(import_path)${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "${LOCAL[@]}" "$@"
}

import_path() { if is_clone; then echo "$REPO:$PARENT"; else echo "$PARENT"; fi; }

# Stop unless the agent's packages are installed; importing them would take seconds. NEEDS: import name and package
# in turn.
NEEDS=(agentlightning agentlightning openai openai)
LOCAL_EXTRAS=(--dev)
need_packages() {
    local at
    for ((at = 0; at < ${#NEEDS[@]}; at += 2)); do
        "$1" -c "import importlib.util as u, sys; sys.exit(u.find_spec('${NEEDS[at]}') is None)" 2>/dev/null ||
            fail "$1 has no package ${NEEDS[at + 1]}; run: $1 -m pip install '${NEEDS[at + 1]}'"
    done
}

EVAL_ARGS=(
    --eval-interval 20
    --eval-prompt-data "$NAME" "$HERE/eval.jsonl"
    --n-samples-per-eval-prompt 4
    --eval-max-response-len 2048
)

PERF_ARGS=(
    --tensor-model-parallel-size "$TP"
    --sequence-parallel
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --use-dynamic-batch-size
    --max-tokens-per-gpu 16384
    --balance-data
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
    --rollout-num-gpus-per-engine "$TP"
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

# Where actor and engines live; fully_async puts them on different GPUs.
PLACEMENT_ARGS=(--actor-num-nodes 1 --actor-num-gpus-per-node "$NUM_GPUS" --colocate)

# All arguments of slime's driver, in TRAIN_ARGS. FLAGS come last: of a flag that is given twice, the last counts.
collect_args() {
    # shellcheck source=/dev/null
    source "$SLIME_DIR/scripts/models/$MODEL_SCRIPT"
    TRAIN_ARGS=(
        "${PLACEMENT_ARGS[@]}" "${MODEL_ARGS[@]}"
        --hf-checkpoint "$CKPT_DIR/$MODEL"
        --ref-load "$CKPT_DIR/${MODEL}_torch_dist"
        --load "$CKPT_DIR/${MODEL}_$NAME"
        --save "$CKPT_DIR/${MODEL}_$NAME"
        --save-interval 20
        "${EVAL_ARGS[@]}" "${PERF_ARGS[@]}" "${GRPO_ARGS[@]}" "${OPTIMIZER_ARGS[@]}"
        "${SGLANG_ARGS[@]}" "${MISC_ARGS[@]}" "${FLAGS[@]}"
    )
}

# What Ray gives to every process of the job.
runtime_env() {
    local nvlinks
    nvlinks="$(nvidia-smi topo -m 2>/dev/null | grep -c 'NV[0-9]' || true)"
    python3 - "$MEGATRON_DIR:$(import_path)" "$((nvlinks > 0))" "$PARENT" <<'PY'
import json, sys

print(json.dumps({"env_vars": {
    "PYTHONPATH": sys.argv[1],
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NCCL_NVLS_ENABLE": sys.argv[2],
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "EXAMPLES": sys.argv[3],
}}))
PY
}

# Start Ray on this machine and submit the training to it.
train() {
    [ "$NUM_GPUS" -ge 1 ] || fail "found no GPU; try: $0 --local"
    [ -f "$SLIME_DIR/$DRIVER" ] || fail "no slime in $SLIME_DIR; set SLIME_DIR to its checkout"
    [ -d "$CKPT_DIR/$MODEL" ] || fail "no checkpoint in $CKPT_DIR/$MODEL; set CKPT_DIR to the folder that holds it"
    need_packages python3
    collect_args
    local environment
    environment="$(runtime_env)"
    export MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
    ray start --head --node-ip-address "$MASTER_ADDR" --num-gpus "$NUM_GPUS" \
        --disable-usage-stats --dashboard-host=127.0.0.1 --dashboard-port=8265
    trap 'ray stop' EXIT
    cd -- "$SLIME_DIR"
    ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="$environment" -- \
        python3 "$DRIVER" "${TRAIN_ARGS[@]}"
}

# --local: see run_locally. --print: slime's arguments, one a line; starts nothing. Else train.
main() {
    case "${1:-}" in
        --local) run_locally "${@:2}" ;;
        --print) collect_args; printf '%s\n' "$DRIVER" "${TRAIN_ARGS[@]}" ;;
        "") train ;;
        *) fail "unknown option $1; known are --local and --print" ;;
    esac
}

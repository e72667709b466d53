"""The guide's table of slime's estimators and the Samples they accept, made from the rules that a run applies."""

from __future__ import annotations

from typing import Any

from slime_agl.config import Config
from slime_agl.host import RolloutArgs, default_args
from slime_agl.host.defaults import GAE, TURNS
from slime_agl.host.trainer import ESTIMATORS
from slime_agl.rollout.refusals import cautions, problems

FAILED = "a failed execution"
FILLED = "several Samples of an execution without `--use-dynamic-batch-size`"
TAUGHT = "`--use-opd --opd-type sglang` with `agl.teacher`"

# A property of a Sample, or a flag that changes how it trains -> slime's arguments for it.
FEATURES: dict[str, dict[str, Any]] = {
    "tool results inside a Sample": {},
    "several Samples of an execution": {"use_dynamic_batch_size": True},
    "a turn that was cut off": {},
    "a weight update within a turn (`--partial-rollout`)": {"partial_rollout": True},
    "credit by turn or by agent (`agl.credit`)": {"use_dynamic_batch_size": True},
    "credit by turn inside a Sample (`agl.credit.span: turn`)": {
        "use_dynamic_batch_size": True,
        "custom_advantage_function_path": TURNS,
        "agl": {"credit": {"mode": "per_turn", "span": "turn", "discount": 0.5}},
    },
    f"`--custom-advantage-function-path {GAE}`": {"custom_advantage_function_path": GAE},
    "`--group-rm`": {"group_rm": True},
    "replay data": {"rollout_top_p": 0.9, "use_rollout_routing_replay": True, "num_layers": 2, "moe_router_topk": 2},
    "`--normalize-advantages`": {"normalize_advantages": True},
    "`--use-rollout-logprobs`": {"use_rollout_logprobs": True},
    "`--use-tis`": {"use_tis": True},
    "`--use-opd --opd-type megatron`": {"use_opd": True, "opd_type": "megatron"},
    FAILED: {},
    FILLED: {"global_batch_size": 4, "micro_batch_size": 1, "actor_num_nodes": 1, "actor_num_gpus_per_node": 4},
    "`--mask-offpolicy-in-partial-rollout`": {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": True},
    "`--kl-coef`": {"kl_coef": 0.1},
    "`--kl-coef` with `--use-rollout-logprobs`": {"kl_coef": 0.1, "use_rollout_logprobs": True},
    "`--use-opd --opd-type sglang`": {"use_opd": True, "opd_type": "sglang"},
    TAUGHT: {"use_opd": True, "opd_type": "sglang", "agl": {"teacher": "http://127.0.0.1:13141"}},
}


def verdict(estimator: str, feature: str) -> str:
    """Return one cell of the table."""
    given = FEATURES[feature]
    args = RolloutArgs.read(default_args(advantage_estimator=estimator, **given))
    config = Config.read({"agent": "some.agent", **given.get("agl", {})})
    if any(problems(args, config)):
        return "refused"
    if any(cautions(args, config)):
        return "warned of"
    if feature == FAILED:
        return "group replaced" if args.trainer.needs_trained_tokens else "masked"
    return "batch filled up" if feature == FILLED else "yes"


def table() -> str:
    """Return Markdown; estimators with equal cells share a column, features a row."""
    columns = _merged({name: tuple(verdict(name, feature) for feature in FEATURES) for name in ESTIMATORS})
    rows = _merged({name: tuple(verdict(names[0], name) for names in columns) for name in FEATURES})
    heads = [", ".join(f"`{name}`" for name in names) for names in columns]
    lines = ["", *heads], ["---"] * (len(heads) + 1), *(["; ".join(names), *cells] for names, cells in rows.items())
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in lines)


def _merged(cells: dict[str, tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Group names with equal cells, in order of first appearance."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, values in cells.items():
        names.setdefault(values, []).append(name)
    return {tuple(together): values for values, together in names.items()}

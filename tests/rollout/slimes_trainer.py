"""slime's way from Samples to a gradient, run by slime's own functions on one CPU.

Its manager's conversion, its schedule, its advantages and its policy loss are slime's code. Only Megatron's process
groups are stood in for, by a single rank, and the model by logits that are random numbers.
"""

from __future__ import annotations

import ast
import sys
import types
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

VOCABULARY = 512  # above that of the tiny tokenizer

# Nothing is clipped, because a clipped token has no gradient.
ARGS: dict[str, Any] = {
    "advantage_estimator": "grpo",
    "kl_coef": 0.0,
    "kl_loss_type": "k1",
    "use_rollout_logprobs": False,
    "use_opd": False,
    "opd_type": None,
    "opd_kl_coef": 1.0,
    "gamma": 1.0,
    "lambd": 0.95,
    "normalize_advantages": False,
    "custom_advantage_function_path": None,
    "rollout_temperature": 1.0,
    "log_probs_chunk_size": -1,
    "allgather_cp": False,
    "entropy_coef": 0.0,
    "use_opsm": False,
    "eps_clip": 1e9,
    "eps_clip_high": 1e9,
    "eps_clip_c": None,
    "get_mismatch_metrics": False,
    "use_tis": False,
    "custom_tis_function_path": None,
    "tis_clip": 2.0,
    "tis_clip_low": 0.0,
    "calculate_per_token_loss": False,
    "use_kl_loss": False,
    "use_dynamic_batch_size": False,
    "max_tokens_per_gpu": 512,
    "micro_batch_size": 1,
    "balance_by_flops": False,
    "balance_data": False,
}


def slimes(name: str) -> Any:
    """Import a module of slime's; skips the test if slime or a dependency is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that slime imports
        return pytest.importorskip(name, reason=f"{name} cannot be imported", exc_type=ImportError)


class Trainer:
    """slime's functions, on one rank; `loaded` brings them."""

    def __init__(self, loss: Any, schedule: Any, convert: Any, torch: Any) -> None:
        self._loss, self._schedule, self._convert, self._torch = loss, schedule, convert, torch

    def train_data(self, args: Namespace, samples: list[Any], post_process: Any) -> dict[str, Any]:
        """`RolloutManager._convert_samples_to_train_data`. post_process: as --custom-reward-post-process-path."""
        manager = types.SimpleNamespace(
            args=args,
            custom_convert_samples_to_train_data_func=None,
            _post_process_rewards=lambda samples: post_process(args, samples),
        )
        return self._convert(manager, samples)

    def schedule(self, args: Namespace, data: dict[str, Any], ranks: int) -> int:
        """`build_dp_schedule`; the number of training steps."""
        parallel = {"dp_size": ranks, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        lengths = [len(tokens) for tokens in data["tokens"]]
        return len(
            self._schedule.build_dp_schedule(
                args, parallel, lengths, global_batch_size=args.global_batch_size, rollout_indices=data["rollout_ids"]
            )[2]
        )

    def advantages(
        self, args: Namespace, data: dict[str, Any], *, seed: int = 0, glue_seed: int = 0, glue_value: float = 0.0
    ) -> dict[str, Any]:
        """`compute_advantages_and_returns` with random values, logprobs and a random reference.

        The teacher is that of the Samples, else random.

        glue_seed: changes these, but for the values, only for tokens that do not train. glue_value: is added to the
        values of such tokens.
        """
        torch = self._torch
        masks = [torch.tensor(mask) for mask in data["loss_masks"]]

        def random(offset: int) -> list[Any]:
            drawn, other = (torch.Generator().manual_seed(offset + 97 * s) for s in (seed, glue_seed + 1000))
            mine = [-torch.rand(len(mask), generator=drawn) - 0.5 for mask in masks]
            theirs = [-torch.rand(len(mask), generator=other) - 0.5 for mask in masks]
            return [torch.where(mask > 0, a, b) for mask, a, b in zip(masks, mine, theirs, strict=True)]

        batch = {
            "log_probs": random(1),
            "ref_log_probs": random(2),
            "rollout_log_probs": [torch.tensor(values) for values in data["rollout_log_probs"]],
            **self._taught(data, masks, random(3)),
            "rewards": data["rewards"],
            "response_lengths": data["response_lengths"],
            "loss_masks": masks,
            "total_lengths": [len(tokens) for tokens in data["tokens"]],
        }
        values = self._values(masks, seed)
        batch["values"] = [one + glue_value * (mask == 0) for one, mask in zip(values, masks, strict=True)]
        self._loss.compute_advantages_and_returns(args, batch)
        return batch

    def _taught(self, data: dict[str, Any], masks: list[Any], other: list[Any]) -> dict[str, Any]:
        """The Samples' teacher_log_probs, but `other` for tokens that do not train; all of `other` without any."""
        if "teacher_log_probs" not in data:
            return {"teacher_log_probs": other}
        own = [self._torch.tensor(values) for values in data["teacher_log_probs"]]
        both = [self._torch.where(mask > 0, a, b) for mask, a, b in zip(masks, own, other, strict=True)]
        return {"teacher_log_probs": both}

    def _values(self, masks: list[Any], seed: int) -> list[Any]:
        # The critic's, of any token: GAE takes a state's value whether or not its token was sampled.
        drawn = self._torch.Generator().manual_seed(seed + 7)
        return [self._torch.rand(len(mask), generator=drawn) for mask in masks]

    def gradient(self, args: Namespace, data: dict[str, Any], batch: dict[str, Any]) -> list[list[float]]:
        """`policy_loss_function` and its gradient, for each response token."""
        torch = self._torch
        tokens = [torch.tensor(ids) for ids in data["tokens"]]
        logits = torch.randn(1, sum(map(len, tokens)), VOCABULARY, generator=torch.Generator().manual_seed(5))
        logits.requires_grad_(True)
        more = {"unconcat_tokens": tokens, "rollout_mask_sums": torch.tensor(data["rollout_mask_sums"])}
        for name in ("rollout_top_p_token_ids", "rollout_top_p_token_offsets"):
            if name in data:
                more[name] = data[name]
        reducer = self._loss.get_sum_of_sample_mean(
            batch["total_lengths"], batch["response_lengths"], batch["loss_masks"], more["rollout_mask_sums"]
        )
        loss, _ = self._loss.policy_loss_function(args, {**batch, **more}, logits, reducer)
        assert torch.isfinite(loss), f"the loss is {loss}"
        loss.backward()
        sizes, at, out = logits.grad[0].abs().sum(-1), 0, []
        for ids, length in zip(tokens, data["response_lengths"], strict=True):
            at += len(ids)
            out.append(sizes[at - length - 1 : at - 1].tolist())
        return out


@contextmanager
def loaded() -> Iterator[Trainer]:
    """slime's functions, while the context lasts; skips the test if they cannot be imported."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    slimes("slime.utils.types")
    with pytest.MonkeyPatch.context() as patch:
        _stand_in_for_megatron(patch)
        patch.setattr(torch, "compile", lambda *args, **more: args[0] if args else (lambda function: function))
        patch.setattr(torch.distributed, "all_reduce", lambda *args, **more: None)
        loss, schedule = slimes("slime.backends.megatron_utils.loss"), slimes("slime.utils.dp_schedule")
        yield Trainer(loss, schedule, _convert(torch), torch)


def _stand_in_for_megatron(patch: pytest.MonkeyPatch) -> None:
    one = dict.fromkeys(("get_context_parallel_world_size", "get_tensor_model_parallel_world_size"), lambda: 1)
    zero = dict.fromkeys(("get_context_parallel_rank", "get_tensor_model_parallel_rank"), lambda: 0)
    group = dict.fromkeys(
        ("get_data_parallel_group", "get_tensor_model_parallel_group", "get_context_parallel_group"), lambda **_: None
    )
    mpu = types.SimpleNamespace(**one, **zero, **group, is_pipeline_last_stage=lambda: True)
    folder = Path(slimes("slime.utils.types").__file__).parents[1] / "backends" / "megatron_utils"
    # slime's package imports Megatron's own on the way; its modules are wanted without.
    for name, attributes in {
        "megatron": {},
        "megatron.core": {"mpu": mpu},
        "slime.backends.megatron_utils": {"__path__": [str(folder)]},
    }.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(attributes)
        patch.setitem(sys.modules, name, module)
    for name in ("loss", "cp_utils"):
        patch.delitem(sys.modules, f"slime.backends.megatron_utils.{name}", raising=False)
    patch.delitem(sys.modules, "slime.utils.ppo_utils", raising=False)


def _convert(torch: Any) -> Any:
    """Extract the manager's method from its source."""
    names = {"torch": torch, "Sample": slimes("slime.utils.types").Sample}
    names["get_source"] = _out_of("utils/data.py", "get_source", names)
    validate = "validate_rollout_routed_experts_for_replay"
    names[validate] = _out_of("observability/rollout_data_utils.py", validate, names)
    return _out_of("ray/rollout.py", "_convert_samples_to_train_data", names)


def _out_of(module: str, name: str, names: dict[str, Any]) -> Any:
    """Extract a function of slime's from a module that needs ray or sglang. names: its globals."""
    path = Path(slimes("slime.utils.types").__file__).parents[1] / module
    found = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if getattr(node, "name", "") == name
    ]
    assert len(found) == 1, f"{path} has {len(found)} of {name}"
    exec(compile(ast.Module(found, []), str(path), "exec"), space := dict(names))
    return space[name]

"""The guide's table of what an execution weighs, computed by slime's own loss, reducers and schedule."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest

from slime_agl.errors import ConfigError
from slime_agl.host.defaults import SEGMENT_REDUCER
from slime_agl.preflight.weights import EXECUTIONS, weights
from slime_agl.reducers import segment
from tests.rollout.slimes_trainer import ARGS, VOCABULARY, Trainer, loaded

pytest.importorskip("slime.utils.types", reason="slime is not on PYTHONPATH", exc_type=ImportError)
pytestmark = pytest.mark.needs_slime

PROMPT, GLUE, MASKED = 3, 2, 5
UNITS: dict[str, dict[str, Any]] = {
    "execution": {},
    "token": {"calculate_per_token_loss": True},
    "segment": {"custom_pg_loss_reducer_function_path": SEGMENT_REDUCER},
}
# Each Sample with its execution and number of trained tokens; glue that does not train follows them.
SAMPLES = [(at, length) for at, lengths in enumerate(EXECUTIONS.values()) for length in lengths]
MASKS = [[1] * length + [0] * (GLUE if length else MASKED) for _, length in SAMPLES]


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    with loaded() as functions:
        functions._loss.mpu.get_data_parallel_world_size = lambda **_: 1
        yield functions


def packed(trainer: Trainer, args: Namespace) -> tuple[list[list[int]], int]:
    """slime's micro-batches of the one step, and the number by which it divides."""
    parallel = {"dp_size": 1, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    _, (batches,), _, (size,) = trainer._schedule.build_dp_schedule(
        args,
        parallel,
        [PROMPT + len(mask) for mask in MASKS],
        global_batch_size=len(EXECUTIONS),
        rollout_indices=[execution for execution, _ in SAMPLES],
    )
    assert sorted(at for batch in batches for at in batch) == list(range(len(SAMPLES)))
    return batches, size


def weighed(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, args: Namespace) -> list[list[float]]:
    """What each token of each Sample weighs in the step's gradient: slime's loss, differentiated by token losses."""
    torch, loss = trainer._torch, trainer._loss
    batches, size = packed(trainer, args)
    sums = [sum(length for other, length in SAMPLES if other == execution) for execution, _ in SAMPLES]
    grads: dict[int, list[float]] = {}
    divisor = 0.0
    for batch in batches:
        lengths = [len(MASKS[at]) for at in batch]
        losses = torch.zeros(sum(lengths), requires_grad=True)
        monkeypatch.setattr(loss, "compute_policy_loss", lambda *_, given=losses, **__: (given, given.detach()))
        tokens = [torch.zeros(PROMPT + length, dtype=torch.long) for length in lengths]
        zeros = [torch.zeros(length) for length in lengths]
        data = {
            **{"unconcat_tokens": tokens, "total_lengths": [len(ids) for ids in tokens], "response_lengths": lengths},
            **{"loss_masks": [torch.tensor(MASKS[at]) for at in batch], "advantages": zeros, "log_probs": zeros},
            **{"rollout_log_probs": zeros, "rollout_mask_sums": torch.tensor([sums[at] for at in batch])},
        }
        logits = torch.zeros(1, sum(map(len, tokens)), VOCABULARY, requires_grad=True)
        scaled, tokens_counted, _ = loss.loss_function(args, data, len(batches), size, logits)
        scaled.backward()
        divisor += float(tokens_counted)
        for at, part in zip(batch, losses.grad.split(lengths), strict=True):
            grads[at] = part.tolist()
    # Megatron divides by the tokens of the step, or else by its micro-batches.
    by = divisor if args.calculate_per_token_loss else len(batches)
    return [[value / by for value in grads[at]] for at in range(len(SAMPLES))]


@pytest.mark.parametrize("most", [40, 120, 10_000], ids=lambda most: f"micro-batches of {most} tokens")
@pytest.mark.parametrize("unit", UNITS)
def test_each_cell_is_what_slime_computes_however_samples_are_packed(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, unit: str, most: int
):
    more = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": most, "loss_type": "policy_loss"}
    more |= {"rollout_top_p": 1.0, "recompute_loss_function": False, "custom_pg_loss_reducer_function_path": None}
    args = Namespace(**{**ARGS, **more, **UNITS[unit]})
    found = weighed(trainer, monkeypatch, args)
    expected = [weight for given in weights(unit) for weight in given]
    for (_, length), mask, values, weight in zip(SAMPLES, MASKS, found, expected, strict=True):
        assert values == pytest.approx([weight / len(EXECUTIONS) * one for one in mask], rel=1e-5)
        assert bool(length) == any(values)


def test_packings_differ(trainer: Trainer):
    counts = []
    for most in (40, 120, 10_000):
        args = Namespace(**{**ARGS, "use_dynamic_batch_size": True, "max_tokens_per_gpu": most})
        counts.append(len(packed(trainer, args)[0]))
    assert counts[0] > counts[1] > counts[2] == 1


def test_without_slimes_own_reducer_it_is_the_same(trainer: Trainer, monkeypatch: pytest.MonkeyPatch):
    torch = trainer._torch
    lengths = [len(mask) for mask in MASKS]
    given = ([PROMPT + length for length in lengths], lengths, [torch.tensor(mask) for mask in MASKS])
    losses = torch.rand(sum(lengths), generator=torch.Generator().manual_seed(1))
    theirs = segment(*given)(losses)
    monkeypatch.setattr("slime_agl.host.sequences._context_parallel", lambda: None)
    assert float(segment(*given)(losses)) == pytest.approx(float(theirs))


def test_means_are_not_divided_by_tokens_again():
    with pytest.raises(ConfigError, match="--calculate-per-token-loss would divide by the number of tokens again"):
        segment([1], [1], [], True)

"""`generate` under slime's own manager: slime itself checks, flattens, dumps, logs and splits the result.

Skipped where slime's checkout is not on PYTHONPATH; slime's manager also needs ray.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.reward import normalize_rewards
from slime_agl.rollout import generate, shutdown
from slime_agl.testing import FakeReplay
from slime_agl.testing.paths import importable
from tests.conftest import flat

types = pytest.importorskip("slime.utils.types", reason="slime is not on PYTHONPATH", exc_type=ImportError)
pytestmark = pytest.mark.needs_slime

# What slime's manager reads beside the arguments that a rollout function honours, with slime's defaults.
MANAGER_ARGS: dict[str, Any] = {
    "use_fault_tolerance": False,
    "load_debug_rollout_data": None,
    "log_reward_category": None,
    "custom_rollout_log_function_path": None,
    "custom_eval_rollout_log_function_path": None,
    "wandb_always_use_train_step": False,
    "use_wandb": False,
    "use_tensorboard": False,
    "micro_batch_size": None,
    "use_dynamic_batch_size": True,
    "max_tokens_per_gpu": 64,
    "balance_by_flops": False,
    "balance_data": False,
}
PARALLEL = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}


class Named(ModuleType):
    """A package of which slime's manager needs names only, until it starts engines or reports to a dashboard."""

    __path__: list[str] = []

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{self.__name__}.{name}"


NAMED = ("wandb", "sglang", "sglang.srt", "sglang.srt.constants", "sglang.srt.server_args", "sglang.srt.utils")
MISSING = [name for name in NAMED if importlib.util.find_spec(name.partition(".")[0]) is None]


def slimes(name: str) -> Any:
    """A module of slime's; the test is skipped where that lacks a package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that slime imports
        return pytest.importorskip(name, reason=f"{name} needs packages that are not installed", exc_type=ImportError)


@agl.rollout
async def does_as_told(task: Any, llm: Any) -> float:
    """Asks once for every letter of the prompt, each in a new conversation; raises at an exclamation mark."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        for letter in task["prompt"]:
            if letter == "!":
                raise RuntimeError("as told")
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": letter}])
    return float(len(task["prompt"]))


class Managed:
    """slime's RolloutManager without its `__init__`, which would start engines.

    logged: what slime's dashboards would get. samples: what slime dumped of a step, read back by slime.
    """

    def __init__(self, manager: Any, logged: list[dict[str, Any]], dump: str) -> None:
        self.manager, self.logged, self._dump = manager, logged, dump

    def samples(self, step: int | str) -> list[Any]:
        return slimes("slime.observability.rollout_data_utils").load_debug_rollout_data(self._dump, rollout_id=step)


@pytest.fixture
def managed(monkeypatch: pytest.MonkeyPatch, rollout_args: Any, tmp_path: Path) -> Iterator[Callable[..., Managed]]:
    """A function: slime's manager and slime's buffered data source for an agent, one row for each prompt."""
    ray = slimes("ray")
    for name in MISSING:
        monkeypatch.setitem(sys.modules, name, Named(name))
    manager_class = slimes("slime.ray.rollout").RolloutManager.__ray_metadata__.modified_class
    source_class = slimes("slime.rollout.data_source").RolloutDataSourceWithBuffer
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "put", lambda value, **_: value)
    monkeypatch.setattr(
        slimes("slime.observability.logging_utils"), "log", lambda args, log, step_key: logged.append(log)
    )

    def make(agent: Any, prompts: list[str], **overrides: Any) -> Managed:
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps({"input": prompt, "label": None}) + "\n" for prompt in prompts), "utf-8")
        dump = str(tmp_path / "dump" / "{rollout_id}.pt")
        section = {"agent": stack.enter_context(importable(agent)), "runners": {"timeout_seconds": 60.0}}
        given = {
            "rollout_batch_size": len(prompts),
            "n_samples_per_prompt": 2,
            "prompt_data": str(path),
            "agl": section,
        }
        given |= {"label_key": "label", "eval_prompt_data": ["rows", str(path)], "save_debug_rollout_data": dump}
        args = rollout_args(**{**MANAGER_ARGS, **given, **overrides})
        args.global_batch_size = args.rollout_batch_size * args.n_samples_per_prompt
        manager = object.__new__(manager_class)
        manager.args, manager.data_source = args, source_class(args)
        manager.generate_rollout = manager.eval_generate_rollout = generate
        path = args.custom_reward_post_process_path
        manager.custom_reward_post_process_func = slimes("slime.utils.misc").load_function(path) if path else None
        manager.custom_convert_samples_to_train_data_func = None
        manager.train_parallel_config, manager._health_monitors = PARALLEL, []
        return Managed(manager, logged, dump)

    with ExitStack() as stack:
        stack.callback(shutdown)
        yield make


@pytest.mark.parametrize(
    "prompts, samples, failed",
    [(["a", "b", "c"], 6, 0), (["a", "bcd", "ef"], 12, 0), (["a", "b", "!"], 6, 0)],
    ids=["flat", "fan-out", "a group that fails is replaced"],
)
def test_slimes_manager_takes_a_step(fake_sglang, managed, token_exact, prompts: list[str], samples: int, failed: int):
    fake_sglang.answer_with(lambda request: f"answer to {request.text}")
    slime = managed(does_as_told, prompts)
    boxes = slime.manager.generate(5)
    batch = [box.inner for box in boxes]
    assert sum(len(part["tokens"]) for part in batch) == samples
    assert len({int(number) for part in batch for number in part["rollout_ids"]}) == 6
    token_exact(fake_sglang, slime.samples(5))
    assert sum(sample.metadata["agl"]["failure"] != "" for sample in slime.samples(5)) == failed


ESTIMATORS = ["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline", "ppo", "reinforce_plus_plus"]


def test_without_fan_out_normalising_is_slimes_to_the_last_bit(managed):
    manager = managed(does_as_told, ["a"], custom_reward_post_process_path=None).manager
    args, rng = manager.args, random.Random(0)
    shapes = itertools.product(ESTIMATORS, [True, False], [(2, 1), (4, 3), (8, 16), (16, 4), (33, 2)])
    for args.advantage_estimator, args.grpo_std_normalization, (size, groups) in shapes:
        args.n_samples_per_prompt, args.rollout_batch_size = size, groups
        samples = [
            types.Sample(
                index=at,
                rollout_id=at,
                group_index=at // size,
                loss_mask=[1],
                response_length=1,
                reward=rng.choice([0.0, 1.0, rng.gauss(0, 3)]),
            )
            for at in range(size * groups)
        ]
        assert normalize_rewards(args, samples) == manager._post_process_rewards(samples)


@agl.rollout
async def raises_once(task: Any, llm: Any) -> float:
    """Raises in the execution of the group that comes first, after its turn."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        answer = await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    if answer.choices[0].message.content == "raise":
        raise RuntimeError("as told")
    return float(answer.choices[0].message.content)


def test_slime_takes_a_placeholder_and_no_baseline_counts_it(fake_sglang, managed):
    fake_sglang.say("raise").say("1").say("3")
    manager = managed(raises_once, ["x"], n_samples_per_prompt=3, grpo_std_normalization=False).manager
    data = manager._convert_samples_to_train_data(flat(manager._get_rollout_data(0)[0]))
    got = sorted(zip(data["raw_reward"], data["rewards"], map(any, data["loss_masks"]), strict=True))
    assert got == [(0.0, 0.0, False), (1.0, -1.0, True), (3.0, 1.0, True)]


def test_what_slime_trains_on_after_a_fan_out_is_normalised_by_group(fake_sglang, managed):
    """Two rows, two executions each, of three Samples and of one; equal rewards per group normalise to 0."""
    fake_sglang.answer_with(lambda request: "ok")
    slime = managed(does_as_told, ["abc", "d"])
    data = slime.manager._convert_samples_to_train_data(flat(slime.manager._get_rollout_data(0)[0]))
    assert data["raw_reward"] == [3.0] * 6 + [1.0] * 2
    assert data["rewards"] == [0.0] * 8
    assert data["rollout_ids"] == [0, 0, 0, 1, 1, 1, 2, 3]
    assert data["rollout_mask_sums"][0] == 3 * sum(data["loss_masks"][0])
    slime.manager.custom_reward_post_process_func = None
    slimes_own = slime.manager._convert_samples_to_train_data(flat(slime.manager._get_rollout_data(1)[0]))
    assert any(slimes_own["rewards"]), "slime by itself compares the rows with each other"


def test_slimes_schedule_keeps_the_samples_of_an_execution_in_one_step(fake_sglang, managed):
    fake_sglang.answer_with(lambda request: "ok")
    slime = managed(does_as_told, ["abc", "d", "ef", "g"])
    slime.manager.args.global_batch_size = 4
    boxes = slime.manager.generate(0)
    parts = [box.inner for box in boxes]
    assert parts[0]["global_batch_sizes"] == [4, 4]
    assert sorted(index for part in parts for index in part["partition"]) == list(range(2 * (3 + 1 + 2 + 1)))


def test_slimes_manager_takes_replay_data(fake_sglang, managed):
    """Routed experts and top-p sets pass slime's own checks, with failed executions and fan-out in the batch."""
    fake_sglang.replay = replay = FakeReplay(layers=4, choices=2)
    fake_sglang.answer_with(lambda request: f"answer to {request.text}")
    model = {"use_rollout_routing_replay": True, "num_layers": 4, "moe_router_topk": 2, "rollout_top_p": 0.9}
    slime = managed(does_as_told, ["a", "b!", "cd"], **model)
    assert slime.manager.generate(5)
    samples = slime.samples(5)
    assert [fault for sample in samples if not sample.remove_sample for fault in replay.faults(sample)] == []
    assert len(samples) == 8


def test_slimes_performance_metrics_are_filled(fake_sglang, managed):
    fake_sglang.answer_with(lambda request: "ok")
    slime = managed(does_as_told, ["abc", "d"], rollout_num_gpus=2)
    slime.manager.generate(0)
    (logged,) = slime.logged
    for name in ("tokens_per_gpu_per_sec", "effective_tokens_per_gpu_per_sec", "non_generation_time/mean"):
        assert logged[f"perf/{name}"] > 0
    assert logged["perf/request/e2e_latency/max"] == 0.0  # as the fake engine says
    assert logged["rollout/prefix_cache_hit_rate"] == 0.0 and logged["rollout/agl/executions"] == 4
    spans = [event for sample in slime.samples(0) for event in sample.trace["events"] if event["type"] == "span_end"]
    assert sum(span["attrs"]["completion_tokens"] for span in spans) == logged["rollout/agl/sampled_tokens"]


def test_slime_logs_an_evaluation_with_its_passrate(fake_sglang, managed):
    fake_sglang.answer_with(lambda request: "ok")
    slime = managed(does_as_told, ["a", "bc!"], n_samples_per_eval_prompt=2, log_passrate=True)
    slime.manager.eval(0)
    (logged,) = slime.logged
    assert logged["eval/rows"] == 0.5 and logged["eval/rows-pass@1"] == 0.5


@pytest.mark.parametrize("evaluation", [False, True], ids=["training", "evaluation"])
def test_slimes_contract_for_a_rollout_function_holds(fake_sglang, managed, monkeypatch, evaluation: bool):
    """What slime's own contract test asks of a path, with the arguments that ours needs (slime's test has none)."""
    monkeypatch.syspath_prepend(str(Path(types.__file__).parents[2] / "tests"))
    contract = slimes("plugin_contracts.test_plugin_rollout_contracts")
    fake_sglang.answer_with(lambda request: "ok")
    manager = managed(does_as_told, ["a", "b"]).manager
    contract.assert_rollout_function_signature_matches_default(manager.generate_rollout)
    output = contract.call_rollout_fn(
        manager.generate_rollout, manager.args, 2, manager.data_source, evaluation=evaluation
    )
    if evaluation:
        contract.assert_eval_rollout_contract(output)
    else:
        contract.assert_train_rollout_contract(output, n_samples_per_prompt=2)


def test_slimes_contract_for_our_other_paths_holds(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(types.__file__).parents[2] / "tests"))
    contract = slimes("plugin_contracts.test_plugin_path_loading_contracts")
    contract.check_data_source_path("slime_agl.data_source.ResumableDataSource")
    contract.check_dynamic_filter_path("slime_agl.reward.check_reward_nonzero_std")
    contract.check_dynamic_filter_path("slime_agl.reward.check_reward_nonzero_std_with_fallback")
    monkeypatch.setenv(contract.contract_env_name("CUSTOM_RM_PATH"), "slime_agl.reward.custom_rm")
    contract.test_custom_rm_path_aligns_with_expected_format()

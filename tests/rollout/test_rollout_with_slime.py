"""`generate` under slime's own manager: what it returns is checked, flattened, dumped, logged and split by slime itself.

Skipped where slime's checkout is not on PYTHONPATH; slime's manager also needs ray.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
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

from slime_agl.rollout import generate, shutdown
from slime_agl.testing.paths import importable

types = pytest.importorskip("slime.utils.types", reason="slime is not on PYTHONPATH", exc_type=ImportError)
pytestmark = pytest.mark.needs_slime

# What slime's manager reads beside the arguments that a rollout function honours, with slime's defaults.
MANAGER_ARGS: dict[str, Any] = {
    "use_fault_tolerance": False, "load_debug_rollout_data": None, "log_reward_category": None,
    "custom_rollout_log_function_path": None, "custom_eval_rollout_log_function_path": None,
    "wandb_always_use_train_step": False, "use_wandb": False, "use_tensorboard": False, "micro_batch_size": None,
    "use_dynamic_batch_size": True, "max_tokens_per_gpu": 64, "balance_by_flops": False, "balance_data": False,
}  # fmt: skip
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
        manager.custom_reward_post_process_func = manager.custom_convert_samples_to_train_data_func = None
        manager.train_parallel_config, manager._health_monitors = PARALLEL, []
        return Managed(manager, logged, dump)

    with ExitStack() as stack:
        stack.callback(shutdown)
        yield make


@pytest.mark.parametrize(
    "prompts, samples, failed",
    [(["a", "b", "c"], 6, 0), (["a", "bcd", "ef"], 12, 0), (["a", "b!", "c"], 6, 0), (["ab", "!", "c"], 6, 0)],
    ids=["flat", "fan-out", "failed with tokens", "failed without tokens"],
)
def test_slimes_manager_takes_a_step(fake_sglang, managed, token_exact, prompts: list[str], samples: int, failed: int):
    fake_sglang.answer_with(lambda request: f"answer to {request.text}")
    slime = managed(does_as_told, prompts)
    boxes = slime.manager.generate(5)
    assert boxes

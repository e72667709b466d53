"""Our agents inside slime's own loops: the default one with its abort, the fully-async one, and evaluation."""

from __future__ import annotations

import json
import threading
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl.rollout import shutdown
from slime_agl.testing.agents import chat_agent
from slime_agl.testing.paths import importable

types = pytest.importorskip("slime.utils.types", reason="slime is not on PYTHONPATH", exc_type=ImportError)
pytestmark = pytest.mark.needs_slime

# What slime's loops read beside the arguments that a rollout function honours, with slime's defaults.
LOOP_ARGS = {
    "sglang_dp_size": 1,
    "rollout_num_engines": 1,
    "use_distributed_post": False,
    "use_rollout_routing_replay": False,
    "custom_generate_function_path": "slime_agl.generate.generate",
}


def slimes(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that slime imports
        return pytest.importorskip(name, reason=f"{name} needs packages that are not installed", exc_type=ImportError)


@pytest.fixture
def made(rollout_args: Any, tmp_path: Path) -> Iterator[Callable[..., tuple[Namespace, Any]]]:
    """A function: arguments for slime's loops with an agent, and slime's own data source over rows `0`, `1`, ..."""
    loop = slimes("slime.rollout.sglang_rollout")
    source_class = slimes("slime.rollout.data_source").RolloutDataSourceWithBuffer

    def make(agent: Any, rows: int, **flags: Any) -> tuple[Namespace, Any]:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps({"input": str(at), "label": None}) + "\n" for at in range(rows)), "utf-8")
        given = {**LOOP_ARGS, "prompt_data": str(path), "label_key": "label", "n_samples_per_prompt": 2}
        given["agl"] = {"agent": stack.enter_context(importable(agent)), "runners": {"timeout_seconds": 60.0}}
        args = rollout_args(**{**given, "eval_prompt_data": ["rows", str(path)], **flags})
        if args.over_sampling_batch_size is None:
            args.over_sampling_batch_size = args.rollout_batch_size  # as slime's validation has it
        slimes("slime.utils.http_utils").init_http_client(args)
        return args, source_class(args)

    with ExitStack() as stack:
        stack.callback(shutdown)
        stack.callback(loop.EVAL_PROMPT_DATASET.clear)
        stack.callback(loop.GenerateState.clear_instances)
        yield make


def test_the_default_loop_trains_on_our_samples(fake_sglang, made: Any, token_exact):
    loop = slimes("slime.rollout.sglang_rollout")
    fake_sglang.answer_with(lambda request: f"answer {len(request.input_ids)}")
    args, source = made(chat_agent(turns=2), 4, rollout_batch_size=2)
    steps = [loop.generate_rollout(args, step, source).samples for step in (0, 1)]
    samples = [sample for groups in steps for group in groups for sample in group]
    assert [sample.index for sample in samples] == list(range(8))
    assert all(sample.reward == 1.0 for sample in samples)
    assert token_exact(fake_sglang, samples) == sum(len(sent.ids) for sent in fake_sglang.answers)


def test_what_the_default_loop_aborts_comes_back_and_starts_afresh(fake_sglang, made: Any, token_exact):
    """Row 0 is at the engine when row 1 fills the batch; in the next step it runs once more, and is trained on."""
    loop = slimes("slime.rollout.sglang_rollout")

    @agl.rollout
    async def agent(task: Any, llm: Any) -> float:
        if task["prompt"] == "0":
            await fake_sglang.requests_arrived(2)
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": task["prompt"]}])
        return float(task["prompt"])

    def answer_the_first_two() -> None:
        fake_sglang.wait_for_requests(4)
        fake_sglang.release(2)

    fake_sglang.answer_with(lambda request: "ok").hold()
    args, source = made(agent, 4, rollout_batch_size=1, over_sampling_batch_size=2, partial_rollout=True)
    helper = threading.Thread(target=answer_the_first_two)
    helper.start()
    first = loop.generate_rollout(args, 0, source).samples
    helper.join()
    assert fake_sglang.in_flight == 0
    assert [[sample.status.value for sample in group] for group in source.buffer] == [["aborted"] * 2]
    fake_sglang.release()
    args.over_sampling_batch_size = 1
    second = loop.generate_rollout(args, 1, source).samples
    assert [[sample.prompt for sample in group] for group in (*first, *second)] == [["1"] * 2, ["0"] * 2]
    token_exact(fake_sglang, [*first, *second])


def test_the_fully_async_loop_takes_our_samples(fake_sglang, made: Any, token_exact):
    fully_async = slimes("slime.rollout.fully_async_rollout")
    fake_sglang.answer_with(lambda request: "ok")
    args, source = made(chat_agent(), 4, rollout_batch_size=2, sglang_server_concurrency=2)
    try:
        steps = [fully_async.generate_rollout_fully_async(args, step, source) for step in (0, 1)]
    finally:
        fully_async._stop_global_worker()
    assert [len(groups) for groups in steps] == [2, 2]
    token_exact(fake_sglang, steps)


def test_slimes_evaluation_counts_an_execution_once(fake_sglang, made: Any):
    loop = slimes("slime.rollout.sglang_rollout")

    @agl.rollout
    async def two_conversations(task: Any, llm: Any) -> float:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
            for word in ("one", "two"):
                await ai.chat.completions.create(model="m", messages=[{"role": "user", "content": word}])
        return float(task["prompt"])

    fake_sglang.answer_with(lambda request: "ok")
    args, source = made(two_conversations, 3, n_samples_per_eval_prompt=2)
    data = loop.generate_rollout(args, 0, source, evaluation=True).data["rows"]
    assert data["rewards"] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_slimes_contract_for_a_custom_generate_function_holds(fake_sglang, made: Any, monkeypatch: Any):
    """What slime's own contract test asks of a path, with the arguments that ours needs."""
    monkeypatch.syspath_prepend(str(Path(types.__file__).parents[2] / "tests"))
    contract = slimes("plugin_contracts.test_plugin_generate_contracts")
    loop = slimes("slime.rollout.sglang_rollout")
    monkeypatch.setattr(loop, "GenerateState", contract._PatchedGenerateState)
    args, source = made(chat_agent(), 1)
    contract.assert_custom_generate_signature_matches_expected(
        contract.load_function(LOOP_ARGS["custom_generate_function_path"])
    )
    fake_sglang.answer_with(lambda request: "ok")
    ((sample, _),) = source.get_samples(1)
    state = slimes("slime.utils.async_utils").run
    result = state(loop.generate_and_rm(args, sample, sampling_params={"temperature": 0.3}, evaluation=False))
    contract.assert_sample_contract(result)

"""Options of slime that concern the engine and the order of its calls."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from agentlightning import LitAgent

from slime_agl.errors import ConfigError
from slime_agl.testing.agents import chat_agent
from tests.conftest import flat


@pytest.fixture
def judge() -> Iterator[tuple[str, int]]:
    """Host and port of another model's router, which answers every chat with `0.75`."""

    class Router(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "0.75"}}
            chat = {"id": "1", "object": "chat.completion", "created": 0, "model": "judge", "choices": [choice]}
            self.send_response(200 if self.path == "/v1/chat/completions" else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(chat).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Router) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[:2]
        server.shutdown()
        thread.join()


class Judged(LitAgent[Any]):
    """Answers with the trained model, and is rewarded by what a frozen one says of it."""

    def rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        trained, frozen = resources["main_llm"], resources["judge"]
        address = trained.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        answer = self.ask(address, trained.api_key, task["prompt"])
        return float(self.ask(frozen.endpoint, frozen.api_key, answer))

    def ask(self, address: str, key: str, text: str) -> str:
        with openai.OpenAI(base_url=address, api_key=key, max_retries=0) as client:
            chat = client.chat.completions.create(model="judge", messages=[{"role": "user", "content": text}])
        return chat.choices[0].message.content


def test_a_frozen_model_answers_and_none_of_it_is_trained(fake_sglang, judge, run_rollout, rollout_args, token_exact):
    policy = rollout_args()
    routers = {"policy": (policy.sglang_router_ip, policy.sglang_router_port), "judge": judge}
    fake_sglang.answer_with(lambda request: "four")
    output = run_rollout(Judged, ["2 + 2?"], n_samples=2, sglang_model_routers=routers)
    assert [sample.reward for sample in flat(output.samples)] == [0.75, 0.75]
    assert output.metrics["rollout/agl/turns_per_execution"] == 1.0
    token_exact(fake_sglang, output.samples)


@pytest.mark.parametrize("evaluation", [False, True], ids=["training", "evaluation"])
def test_under_deterministic_inference_the_place_in_the_group_is_the_seed(fake_sglang, run_rollout, evaluation: bool):
    fake_sglang.answer_with(lambda request: "ok")
    flags = {"sglang_enable_deterministic_inference": True, "rollout_seed": 40}
    run_rollout(chat_agent(turns=2), ["a", "b"], n_samples=3, evaluation=evaluation, **flags)
    seeds = Counter(request.sampling_params["sampling_seed"] for request in fake_sglang.requests)
    assert seeds == {40: 4, 41: 4, 42: 4}


def test_an_evaluation_may_come_after_a_later_step(fake_sglang, steps, tmp_path):
    """train_async.py has step 1 generated before it evaluates after step 0."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input": "x", "label": null}\n')
    fake_sglang.answer_with(lambda request: "ok")
    run = steps(chat_agent(), ["a"], eval_prompt_data=["rows", str(rows)], label_key="label")
    run(0)
    run(1)
    assert run.evaluate(0).data["rows"]["rewards"] == [1.0]
    assert len(run(2).samples) == 1


def test_a_generate_function_that_agents_take_the_place_of_is_named(
    fake_sglang, run_rollout, rollout_args, caplog, tmp_path
):
    fake_sglang.answer_with(lambda request: "ok")
    ours, other = (
        {"custom_generate_function_path": "slime_agl.generate.generate"},
        {"custom_generate_function_path": "a.b"},
    )
    run_rollout(chat_agent(), ["a"], **ours)
    assert "--custom-generate-function-path" not in caplog.text
    run_rollout(chat_agent(), ["a"], **other)
    assert "--custom-generate-function-path a.b is not called" in caplog.text
    rows = tmp_path / "own.jsonl"
    rows.write_text('{"input": "x"}\n')
    datasets = rollout_args(eval_prompt_data=["own", str(rows)]).eval_datasets
    datasets[0].custom_generate_function_path = "a.b"
    with pytest.raises(ConfigError, match="eval dataset own names custom_generate_function_path a.b"):
        run_rollout(chat_agent(), ["a"], evaluation=True, eval_datasets=datasets)

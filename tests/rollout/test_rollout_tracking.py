"""What goes to slime's trackers beside the metrics that it logs itself: tables of conversations, and OpenTelemetry."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from slime_agl.host.tracking import Telemetry, log_table
from slime_agl.rollout import shutdown

ROWS = [{"prompt": f"{n} please", "label": str(n)} for n in range(6)]


async def scored(task: dict[str, Any], llm: Any) -> float:
    """Ask once; the reward is the number in the row."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        message = {"role": "user", "content": task["prompt"]}
        await client.chat.completions.create(model=llm.model, messages=[message])
    return float(task["label"]) / 10


@pytest.fixture
def agent(fake_sglang: Any) -> Any:
    import agentlightning as agl

    fake_sglang.answer_with(lambda request: "said of it")
    return agl.rollout(scored)


class Wandb(ModuleType):
    """Keeps what is logged. run: as wandb's, None before init."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.run: object | None = object()
        self.logged: list[dict[str, Any]] = []
        self.Table = lambda columns, data: SimpleNamespace(columns=columns, data=data)

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """slime's TensorBoard adapter, with a writer that keeps texts."""
    kept: list[tuple[str, str, int]] = []
    adapter = SimpleNamespace(_writer=SimpleNamespace(add_text=lambda *given: kept.append(given)))
    module = ModuleType("slime.observability.tensorboard_utils")
    module._TensorboardAdapter = lambda args: adapter
    monkeypatch.setitem(sys.modules, "slime.observability.tensorboard_utils", module)
    return kept


def test_a_table_goes_to_wandb_under_the_steps_axis(run_rollout, agent, wandb):
    run_rollout(agent, ROWS, agl={"tables": {"conversations": 3}}, use_wandb=True, rollout_id=20)
    (logged,) = wandb.logged
    table = logged["rollout/agl/conversations"]
    assert logged["rollout/step"] == 20
    rewards = [row[table.columns.index("reward")] for row in table.data]
    assert rewards == [0.0, 0.2, 0.5]
    first = dict(zip(table.columns, table.data[0], strict=True))
    assert "0 please" in first["conversation"] and "said of it" in first["conversation"]
    assert first["trained"] > 0 and first["tokens"] > first["trained"]


def test_tables_come_each_n_steps_and_with_each_evaluation(run_rollout, agent, wandb):
    section = {"tables": {"every": 2, "conversations": 1}}
    for step in range(4):
        run_rollout(agent, ROWS[:2], agl=section, use_wandb=True, rollout_id=step)
    assert [one["rollout/step"] for one in wandb.logged] == [0, 2]
    run_rollout(agent, ROWS[:2], agl=section, use_wandb=True, rollout_id=3, evaluation=True)
    assert set(wandb.logged[-1]) == {"eval/agl/conversations/rows", "eval/step"}


def test_without_a_tracker_or_with_tables_off_nothing_is_logged(run_rollout, agent, wandb):
    run_rollout(agent, ROWS[:1])
    run_rollout(agent, ROWS[:1], agl={"tables": {"every": 0}}, use_wandb=True)
    run_rollout(agent, ROWS[:1], agl={"tables": {"every": 0}}, use_wandb=True, evaluation=True)
    wandb.run = None  # as in a process where slime has not initialised it
    run_rollout(agent, ROWS[:1], use_wandb=True)
    assert wandb.logged == []


def test_tensorboard_gets_a_text_in_which_nothing_is_markup(texts):
    args = SimpleNamespace(use_tensorboard=True)
    log_table(args, 5, "rollout/agl/conversations", ("reward", "conversation"), [(0.5, "# no heading\n```")])
    assert texts == [("rollout/agl/conversations/0", "reward 0.5\n\n    # no heading\n    ```", 5)]


def test_a_tracker_that_fails_does_not_end_the_run(caplog: pytest.LogCaptureFixture, wandb):
    def fail(values: object) -> None:
        raise OSError("no room")

    wandb.log = fail
    log_table(SimpleNamespace(use_wandb=True), 0, "rollout/agl/conversations", ("a",), [(1,)])
    assert "rollout/agl/conversations was not logged under --use-wandb: no room" in caplog.text


def test_the_step_is_slimes_also_in_train_steps(wandb):
    args = SimpleNamespace(
        use_wandb=True,
        wandb_always_use_train_step=True,
        rollout_batch_size=16,
        n_samples_per_prompt=8,
        global_batch_size=64,
    )
    log_table(args, 3, "rollout/agl/conversations", ("a",), [(1,)])
    assert wandb.logged[0]["rollout/step"] == 6


def gauges(reader: InMemoryMetricReader) -> dict[str, float]:
    (resource,) = reader.get_metrics_data().resource_metrics
    return {one.name: one.data.data_points[0].value for one in resource.scope_metrics[0].metrics}


def test_metrics_become_gauges():
    reader = InMemoryMetricReader()
    telemetry = Telemetry(MeterProvider(metric_readers=[reader]))
    telemetry.record({"rollout/agl/untrained_tokens/agent error": 3, "rollout/agl/note": "text", "rollout/step": 1})
    telemetry.record({"rollout/step": 2})
    assert gauges(reader) == {"rollout/agl/untrained_tokens/agent_error": 3, "rollout/step": 2}
    telemetry.close()
    telemetry.close()
    telemetry.record({"rollout/step": 3})


class Collector(BaseHTTPRequestHandler):
    """An OTLP endpoint."""

    received: list[tuple[str, bytes]] = []

    def do_POST(self) -> None:
        self.received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_metrics_of_a_step_reach_the_endpoint_of_the_environment(run_rollout, agent, monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Collector.received = []
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        output = run_rollout(agent, ROWS[:2], rollout_id=7)
        shutdown()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    sent = [body for path, body in Collector.received if path == "/v1/metrics"]
    told = ExportMetricsServiceRequest.FromString(sent[-1])
    values = {
        one.name: one.gauge.data_points[0].as_double or one.gauge.data_points[0].as_int
        for resource in told.resource_metrics
        for scope in resource.scope_metrics
        if scope.scope.name == "slime_agl"
        for one in scope.metrics
    }
    assert values["rollout/step"] == 7
    assert values["rollout/agl/trained_tokens"] == output.metrics["rollout/agl/trained_tokens"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_METRICS_EXPORTER": "none"},
    ],
)
def test_nothing_is_exported_unless_the_environment_says_so(environment: dict[str, str]):
    telemetry = Telemetry.of_environment(environment)
    telemetry.record({"rollout/step": 1})
    assert telemetry._provider is None

"""slime's trackers, for what its own logging cannot carry.

The metrics that a rollout function returns are logged by slime, to W&B and TensorBoard where its flags say so. Left for
us are tables of conversations, which go to the same two under the same step, and OpenTelemetry, which slime does not
know: the metrics go there when OpenTelemetry's own environment variables name an endpoint.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

logger = logging.getLogger(__name__)

Row = Sequence[str | int | float | None]
ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
CLOSING_MS = 3000
_STRANGE = re.compile(r"[^A-Za-z0-9_./-]")


def shows_tables(args: Any) -> bool:
    """True if slime's flags name a tracker that takes tables."""
    return bool(getattr(args, "use_wandb", False) or getattr(args, "use_tensorboard", False))


def log_table(args: Any, rollout_id: int, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Log a table to the trackers of slime's flags, under the step that slime logs the rollout's metrics with.

    A tracker that fails is logged as a warning: it does not end a run.
    """
    step = _step(args, rollout_id)
    for flag, log in (("use_wandb", _to_wandb), ("use_tensorboard", _to_tensorboard)):
        if not getattr(args, flag, False):
            continue
        try:
            log(args, step, name, columns, rows)
        except Exception as error:  # the boundary to a tracker, whose errors are its own
            logger.warning("%s was not logged under --%s: %s", name, flag.replace("_", "-"), error)


def _step(args: Any, rollout_id: int) -> int:
    """slime's x axis: the rollout, or the number of train steps before it under --wandb-always-use-train-step."""
    if not getattr(args, "wandb_always_use_train_step", False):
        return rollout_id
    return rollout_id * args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size


def _to_wandb(args: Any, step: int, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    wandb = importlib.import_module("wandb")
    if wandb.run is not None:
        table = wandb.Table(columns=list(columns), data=[list(row) for row in rows])
        wandb.log({name: table, f"{name.partition('/')[0]}/step": step})


def _to_tensorboard(args: Any, step: int, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    module = importlib.import_module("slime.observability.tensorboard_utils")
    # slime's adapter logs scalars only; it is one per process, so this is the writer that has the metrics.
    writer = module._TensorboardAdapter(args)._writer
    for at, row in enumerate(rows):
        writer.add_text(f"{name}/{at}", _markdown(columns, row), step)


def _markdown(columns: Sequence[str], row: Row) -> str:
    """Facts in a line, then the last column as a block of code, in which nothing is markup."""
    facts = " · ".join(f"{column} {value}" for column, value in zip(columns[:-1], row[:-1], strict=True))
    return f"{facts}\n\n" + "\n".join(f"    {line}" for line in str(row[-1]).splitlines())


class Telemetry:
    """Metrics as OpenTelemetry gauges, exported in the background. provider: of meters, None for no export."""

    def __init__(self, provider: Any | None) -> None:
        self._provider = provider
        self._meter = None if provider is None else provider.get_meter("slime_agl")
        self._gauges: dict[str, Any] = {}

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Telemetry:
        """Export over OTLP where OpenTelemetry's variables name an endpoint; these also say protocol and headers."""
        named = any(environment.get(name) for name in ENDPOINTS)
        off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
        if not named or off or environment.get("OTEL_METRICS_EXPORTER", "otlp") != "otlp":
            return cls(None)
        protocol = environment.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or environment.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
        )
        package = f"opentelemetry.exporter.otlp.proto.{'grpc' if protocol == 'grpc' else 'http'}.metric_exporter"
        try:
            exporter = importlib.import_module(package).OTLPMetricExporter()
            sdk = importlib.import_module("opentelemetry.sdk.metrics")
            reader = importlib.import_module("opentelemetry.sdk.metrics.export").PeriodicExportingMetricReader(exporter)
        except ImportError as error:
            logger.warning("metrics are not exported, though OpenTelemetry's variables name an endpoint: %s", error)
            return cls(None)
        return cls(sdk.MeterProvider(metric_readers=[reader]))

    def record(self, metrics: Mapping[str, Any]) -> None:
        """Set a gauge per metric that is a number; one that a later step does not have keeps its value."""
        if self._meter is None:
            return
        for name, value in metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            plain = _STRANGE.sub("_", name)[:255]
            if plain not in self._gauges:
                self._gauges[plain] = self._meter.create_gauge(plain)
            self._gauges[plain].set(value)

    def close(self) -> None:
        """Export what is left, and end; idempotent."""
        provider, self._provider, self._meter = self._provider, None, None
        if provider is None:
            return
        try:
            provider.shutdown(timeout_millis=CLOSING_MS)
        except Exception as error:  # the boundary to an exporter, whose errors are its own
            logger.warning("the last metrics were not exported to OpenTelemetry: %s", error)

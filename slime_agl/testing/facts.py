"""What the scripted server says of itself, endpoint by endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slime_agl.testing.record import Script


def facts(fake: Script, url: Callable[[], str], in_flight: Callable[[], int]) -> dict[str, Callable[[], Any]]:
    """The GET endpoints: path to a function that makes the JSON value."""

    def model() -> dict[str, Any]:
        return {
            "model_path": "fake",
            "is_generation": True,
            "weight_version": fake.weight_version,
            "vocab_size": len(fake.tokenizer),
        }

    def server() -> dict[str, Any]:
        sizes = {"context_length": fake.context_length, "tp_size": 1, "dp_size": 1, "pp_size": 1}
        return {**model(), **sizes, "served_model_name": "fake"}

    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "fake", "object": "model", "max_model_len": fake.context_length}]}

    def loads() -> dict[str, Any]:
        count = in_flight()
        return {"loads": [{"dp_rank": 0, "num_running_reqs": count, "num_waiting_reqs": 0, "num_total_reqs": count}]}

    def workers() -> dict[str, Any]:
        worker = {"id": "fake", "url": url(), "worker_type": "regular", "is_healthy": True, "load": in_flight()}
        return {"workers": [worker], "total": 1}

    return {
        "/health": dict,
        "/health_generate": dict,
        "/get_model_info": model,
        "/model_info": model,
        "/server_info": server,
        "/get_server_info": server,
        "/v1/models": models,
        "/v1/loads": loads,
        "/workers": workers,
    }

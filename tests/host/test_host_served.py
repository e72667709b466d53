"""Which of several served models trains."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime_agl.errors import ConfigError
from slime_agl.host import RolloutArgs
from slime_agl.host.served import trained_model

ROUTERS = {"judge": ("10.0.0.1", 3000), "actor": ("10.0.0.2", 3001)}


@pytest.fixture
def sglang_config(tmp_path: Path) -> Callable[[str], str]:
    """Writes a new file each time, because a process reads each once."""

    def write(text: str) -> str:
        path = tmp_path / f"sglang-{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def model(name: str, **more: Any) -> str:
    group = "    server_groups: [{worker_type: regular, num_gpus: 1}]\n"
    return f"  - name: {name}\n" + "".join(f"    {key}: {value}\n" for key, value in more.items()) + group


def served(path: str, **more: Any) -> Namespace:
    # As slime leaves it: the default address is that of the model listed first.
    given = {"sglang_router_ip": "10.0.0.1", "sglang_router_port": 3000, "sglang_model_routers": ROUTERS}
    return Namespace(sglang_config=path, hf_checkpoint="/actor", **{**given, **more})


def test_a_frozen_model_listed_first_is_not_the_one_that_agents_get(sglang_config):
    path = sglang_config("sglang:\n" + model("judge", update_weights="false") + model("actor", update_weights="true"))
    args = RolloutArgs.read(served(path))
    assert args.router_url == "http://10.0.0.2:3001"
    assert args.frozen_models == {"judge": "http://10.0.0.1:3000/v1"}


def test_a_model_of_another_checkpoint_is_frozen_unless_it_says_otherwise(sglang_config):
    path = sglang_config("sglang:\n" + model("judge", model_path="/judge") + model("actor"))
    assert RolloutArgs.read(served(path)).router_url == "http://10.0.0.2:3001"
    overridden = "  - name: judge\n    engine_groups: [{worker_type: regular, overrides: {model_path: /judge}}]\n"
    path = sglang_config("sglang:\n" + overridden + model("actor", model_path="/actor"))
    assert RolloutArgs.read(served(path)).router_url == "http://10.0.0.2:3001"


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "sglang:\n" + model("judge", update_weights="false") + model("ref", model_path="/ref"),
            r"none of its 2 models \(judge, ref\) gets weights.*`update_weights: true`",
        ),
        (
            "sglang:\n" + model("left") + model("judge", model_path="/judge") + model("right"),
            r"2 of its 3 models get weights \(left, right\).*only left.*`update_weights: false`",
        ),
        ("sglang:\n" + model("actor") + model("actor", update_weights="false"), "'actor' twice"),
        ("sglang: {name: actor}\n", "a list of models"),
        ("sglang: [{", "cannot be read"),
        ("sglang:\n" + model("policy"), "trains 'policy', slime's routers are for judge, actor"),
    ],
)
def test_a_file_without_exactly_one_trained_model_is_refused_by_name(sglang_config, text, message):
    with pytest.raises(ConfigError, match=message):
        RolloutArgs.read(served(sglang_config(text)))


def test_a_missing_file_is_refused_by_its_flag(tmp_path):
    with pytest.raises(ConfigError, match="--sglang-config .*absent.yaml cannot be read"):
        trained_model(tmp_path / "absent.yaml", "/actor")


def test_before_slime_has_started_routers_its_address_stands(sglang_config):
    path = sglang_config("sglang:\n" + model("judge", update_weights="false") + model("actor"))
    assert RolloutArgs.read(served(path, sglang_model_routers=None)).router_url == "http://10.0.0.1:3000"


@pytest.mark.needs_slime
@pytest.mark.parametrize("explicit", ["", "true", "false"])
@pytest.mark.parametrize("path", ["", "/actor", "/other"])
@pytest.mark.parametrize("override", ["", "/actor", "/other"])
def test_the_rules_are_slimes(tmp_path, explicit, path, override):
    config = pytest.importorskip(
        "slime.backends.sglang_utils.sglang_config", reason="slime is not on PYTHONPATH", exc_type=ImportError
    )
    group = (
        "{worker_type: regular, num_gpus: 1" + (f", overrides: {{model_path: {override}}}" if override else "") + "}"
    )
    text = "sglang:\n  - name: one\n" + (f"    model_path: {path}\n" if path else "")
    text += (f"    update_weights: {explicit}\n" if explicit else "") + f"    server_groups: [{group}]\n"
    file = tmp_path / f"{explicit}{path}{override}.yaml".replace("/", "_")
    file.write_text(text, encoding="utf-8")
    (one,) = config.SglangConfig.from_yaml(str(file)).models
    one.resolve(Namespace(hf_checkpoint="/actor", rollout_num_gpus_per_engine=1))
    if one.update_weights:
        assert trained_model(file, "/actor") == "one"
    else:
        with pytest.raises(ConfigError, match="none of its 1 models"):
            trained_model(file, "/actor")

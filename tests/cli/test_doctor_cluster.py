"""`slime-agl doctor --cluster`: what it makes of the nodes' answers. tests/workers asks real nodes."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slime_agl import __version__
from slime_agl.cli.main import main
from slime_agl.config import Config
from slime_agl.preflight.cluster import judge_cluster
from slime_agl.workers.placement import Node

pytest.importorskip("ray")
from slime_agl.workers.cluster import NodeView, offset

URL, PATH = "http://10.0.0.9:30000", "/models/tiny"


def view(number: int, *, free: float = 4.0, **answers: Any) -> NodeView:
    node = Node(id=f"{number:08x}{'0' * 8}", address=f"10.0.0.{number}", cpus=8.0, free_cpus=free)
    return NodeView(node=node, **{"version": __version__, "tokenizer": "d1", "router": "", **answers})


def judged(
    *views: NodeView, url: str | None = URL, path: str | None = PATH, **workers: Any
) -> dict[str, tuple[str, str]]:
    config = Config.read({"agent": "a.b", "workers": workers}) if workers else None
    return {
        one.name: (one.verdict, one.words) for one in judge_cluster(views, checkpoint=path, router=url, config=config)
    }


def test_nodes_that_see_everything_pass() -> None:
    found = judged(view(1), view(2, free=1), count=5)
    assert {verdict for verdict, _ in found.values()} == {"pass"}
    assert found["cluster"][1].startswith("2 nodes, 5 of 16 CPUs free: 10.0.0.1 (4 of 8 CPUs free), 10.0.0.2 (1 of 8")
    assert found["agl.workers"][1] == "count 5 fits, on 2 of 2 nodes"
    assert list(found) == [
        "cluster", "agl.workers", "slime_agl on each node", "tokenizer on each node", "router from each node", "clocks",
    ]  # fmt: skip


def test_what_is_not_named_is_not_judged() -> None:
    assert list(judged(view(1), url=None, path=None)) == ["cluster", "slime_agl on each node", "clocks"]


BAD = {
    "no CPU free": ([view(1, free=0)], "cluster", "look", "0 of 8 CPUs free.*leave some to them"),
    "a silent node": (
        [view(1), view(2, silent="no answer within 60 s")],
        "nodes answer",
        "fail",
        r"^10.0.0.2 \(00000002\): no answer within 60 s; see `ray status`",
    ),
    "a node without slime_agl": (
        [view(1), view(2, version="")],
        "slime_agl on each node",
        "fail",
        "cannot be imported on 10.0.0.2 .*runtime_env",
    ),
    "another slime_agl": (
        [view(1), view(2, version="0.0.1")],
        "slime_agl on each node",
        "fail",
        f"10.0.0.2 .* has 0.0.1, and this machine {__version__}; install the same",
    ),
    "a node without the tokenizer": (
        [view(1), view(2, tokenizer="")],
        "tokenizer on each node",
        "fail",
        f"{PATH} does not exist on 10.0.0.2 .*; copy it there",
    ),
    "a node with another tokenizer": (
        [view(1), view(2, tokenizer="d2"), view(3)],
        "tokenizer on each node",
        "fail",
        f"{PATH} holds other files on 10.0.0.2 .* than elsewhere; copy",
    ),
    "a node that cannot reach the router": (
        [view(1, router="timed out"), view(2)],
        "router from each node",
        "fail",
        f"{URL} is not reached from 10.0.0.1 .*: timed out; open its port",
    ),
    "a clock ahead": (
        [view(1, skew=2.5, uncertainty=0.1), view(2)],
        "clocks",
        "look",
        r"10.0.0.1 .*\+2.50 s off .*chrony",
    ),
    "a clock behind": ([view(1, skew=-1.5), view(2)], "clocks", "look", r"10.0.0.1 .* is -1.50 s off"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_with_its_node_and_next_step(name: str) -> None:
    views, finding, verdict, words = BAD[name]
    found = judged(*views)
    assert found[finding][0] == verdict
    assert re.search(words, found[finding][1]), found[finding][1]
    others = {one for title, (one, _) in found.items() if title != finding}
    assert others == {"pass"}, found


def test_answers_of_silent_nodes_are_not_judged() -> None:
    found = judged(view(1, silent="no answer within 1 s", version="", tokenizer=None, router=None))
    assert list(found) == ["cluster", "nodes answer"]


def test_a_clock_that_may_be_right_is_not_blamed() -> None:
    assert judged(view(1, skew=1.5, uncertainty=0.8))["clocks"][0] == "pass"


def test_workers_that_do_not_fit_are_refused_with_the_free_cpus_of_each_node() -> None:
    verdict, words = judged(view(1, free=1), view(2, free=0), count=2)["agl.workers"]
    assert (
        verdict == "fail" and "10.0.0.1 (1 of 8 CPUs free), 10.0.0.2 (0 of 8" in words and "agl.workers.count" in words
    )


def test_a_router_on_loopback_is_explained() -> None:
    words = judged(view(1, router="refused"), url="http://127.0.0.1:30000")["router from each node"][1]
    assert "loopback, and means each node itself" in words


def test_a_name_of_the_hub_is_a_look_as_every_node_would_fetch_it() -> None:
    assert judged(view(1, tokenizer=""), path="Qwen/Qwen3-4B")["tokenizer on each node"][0] == "look"
    assert judged(view(1, tokenizer=""), path="./tiny")["tokenizer on each node"][0] == "fail"


def test_the_offset_of_a_clock_is_that_of_the_shortest_ping() -> None:
    assert offset([(0.0, 9.0, 8.0), (10.0, 15.25, 10.5), (20.0, 28.0, 22.0)]) == (5.0, 0.25)


def doctor(*words: str) -> list[dict[str, str]]:
    done = CliRunner().invoke(main, ["doctor", "--json", *words])
    return [one for one in json.loads(done.output)["findings"] if one["name"] == "cluster"]


def test_without_ray_the_option_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else find(name, *more))
    (found,) = doctor("--cluster")
    assert (
        found["verdict"] == "fail"
        and "Ray is not installed here" in found["words"]
        and "pip install ray" in found["words"]
    )


def test_an_address_where_nobody_listens_is_named() -> None:
    (found,) = doctor("--cluster", "127.0.0.1:1", "--", "--kl-coef", "0.1")
    assert found["verdict"] == "fail" and "nobody listens at --cluster 127.0.0.1:1" in found["words"]


def test_the_address_may_be_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "slime_agl.preflight.looks.look_at_cluster", lambda *given, **named: asked.append((given, named)) or []
    )
    (tmp_path / "agl.yaml").write_text("agl: {agent: a.b, workers: {count: 3}}\nsglang_router_port: 4\n")
    doctor(
        "--config", str(tmp_path / "agl.yaml"), "--cluster", "--", "--hf-checkpoint", "/m", "--sglang-router-ip", "h"
    )
    ((given, named),) = asked
    assert given == ("auto",)
    assert (named["checkpoint"], named["router"], named["config"].workers.count) == ("/m", "http://h:4", 3)
    assert doctor() == [] and len(asked) == 1

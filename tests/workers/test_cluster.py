"""`slime-agl doctor` asks the nodes of a real cluster."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slime_agl import __version__
from slime_agl.cli.main import main
from slime_agl.testing import FakeSGLang, save_tiny_checkpoint

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]


def look(**asked: Any) -> list[Any]:
    from slime_agl.workers.cluster import look_at_nodes

    return look_at_nodes(None, **{"path": None, "url": None, "seconds": 120.0, **asked})


def test_each_node_answers_for_itself(cluster: Any, tmp_path: Path) -> None:
    checkpoint = save_tiny_checkpoint(tmp_path / "checkpoint")
    with FakeSGLang() as fake:
        views = look(path=str(checkpoint), url=fake.url)
    assert len({view.node.id for view in views}) == 3
    for view in views:
        assert (view.silent, view.version, view.router) == ("", __version__, "")
        assert view.tokenizer and view.tokenizer == views[0].tokenizer
        assert view.node.cpus == 2
        # One clock, read between sending and receiving.
        assert abs(view.skew) <= view.uncertainty + 1e-6


def test_what_a_node_cannot_see_is_told(cluster: Any, tmp_path: Path) -> None:
    one = look(path=str(save_tiny_checkpoint(tmp_path / "checkpoint")))[0]
    (tmp_path / "checkpoint" / "tokenizer_config.json").write_text("{}")
    views = look(path=str(tmp_path / "checkpoint"))
    assert all(view.tokenizer not in ("", one.tokenizer) and view.router is None for view in views)
    for view in look(path=str(tmp_path / "missing"), url="http://127.0.0.1:1"):
        assert view.tokenizer == "" and "refused" in view.router


def test_nodes_that_do_not_answer_in_time_are_named(cluster: Any) -> None:
    views = look(seconds=0.0)
    assert [view.silent for view in views] == ["no answer within 0 s"] * 3
    assert len({view.node.id for view in views}) == 3


def test_a_cluster_that_is_connected_is_checked_without_being_named(cluster: Any, tmp_path: Path) -> None:
    checkpoint = save_tiny_checkpoint(tmp_path / "checkpoint")
    done = CliRunner().invoke(main, ["doctor", "--json", "--", "--hf-checkpoint", str(checkpoint)])
    found = {one["name"]: one for one in json.loads(done.output)["findings"]}
    assert found["cluster"]["words"].startswith("3 nodes, ")
    assert found["tokenizer on each node"]["words"] == f"{checkpoint} is the same on 3 nodes"
    assert found["clocks"]["verdict"] == "pass"


def test_what_listens_and_is_no_cluster_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from slime_agl.errors import ConfigError
    from slime_agl.workers import cluster as asking

    monkeypatch.setattr(asking, "connected", lambda: False)
    monkeypatch.setattr(asking, "STATUS_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ConfigError) as caught:
        asking.look_at_nodes(f"127.0.0.1:{server.getsockname()[1]}", path=None, url=None, seconds=1.0)
    assert "no Ray cluster answers at 127.0.0.1:" in str(caught.value) and "ray status" in str(caught.value)


def test_a_cluster_is_found_at_its_address(cluster: Any) -> None:
    command = [sys.executable, "-m", "slime_agl.cli.main", "doctor", "--json", "--cluster", cluster.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=dict(os.environ))
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["cluster"]["words"].startswith("3 nodes, "), done.stdout + done.stderr
    assert found["slime_agl on each node"]["verdict"] == "pass"

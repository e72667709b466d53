"""What a run says of its chat template before the first turn."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime_agl.assemble import make_runtime
from slime_agl.config import Config
from slime_agl.host import RolloutArgs

# Leaves tool results out, and ends turns with a token that no list names.
DEAF = (
    "{% for m in messages if m.role != 'tool' %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{{ '<|im_start|>' }}"
)


def test_a_run_is_warned_of_what_its_template_hides_and_of_a_missing_stop_token(
    rollout_args: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "deaf.jinja").write_text(DEAF)
    args = RolloutArgs.read(rollout_args(chat_template_path=str(tmp_path / "deaf.jinja")))
    with caplog.at_level(logging.WARNING, "slime_agl.assemble"):
        make_runtime(Config.read({"agent": "slime_agl.testing.agents.tool_agent"}), args)
    hidden, stops = (record.getMessage() for record in caplog.records if record.name == "slime_agl.assemble")
    assert "does not show the model the list of tools, tool results" in hidden and "--chat-template-path" in hidden
    assert "if the model ends turns with <|im_start|>" in stops and "--rollout-stop-token-ids" in stops


def test_a_run_whose_template_shows_everything_is_not_warned(
    rollout_args: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    make_runtime(Config.read({"agent": "slime_agl.testing.agents.tool_agent"}), RolloutArgs.read(rollout_args()))
    assert [record for record in caplog.records if record.name == "slime_agl.assemble" and record.levelno > 20] == []

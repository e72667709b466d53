"""What a run reports of its chat template before the first turn."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from slime_agl.assemble import make_plan
from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.chat.template.renderer import Renderer

# Leaves tool results out, and ends turns with a token that no list names.
DEAF = (
    "{% for m in messages if m.role != 'tool' %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{{ '<|im_start|>' }}"
)


def said_of(checkpoint: Path, caplog: pytest.LogCaptureFixture, template: str | None = None) -> list[str]:
    with caplog.at_level(logging.INFO, "slime_agl.assemble"):
        make_plan(Renderer(load_tokenizer(str(checkpoint)), chat_template=template), "ckpt")
    forks, *warnings = [record for record in caplog.records if record.name == "slime_agl.assemble"]
    assert (forks.levelname, {one.levelname for one in warnings} <= {"WARNING"}) == ("INFO", True)
    return [one.getMessage() for one in warnings]


def test_a_run_is_warned_of_what_its_template_hides_and_of_a_missing_stop_token(
    tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hidden, stops = said_of(tiny_checkpoint, caplog, DEAF)
    assert "does not show the model the list of tools, tool results" in hidden and "chat_template_path" in hidden
    assert "if the model ends turns with <|im_start|>" in stops and "--rollout-stop-token-ids" in stops


def test_a_run_whose_template_shows_everything_is_not_warned(
    tiny_checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert said_of(tiny_checkpoint, caplog) == []

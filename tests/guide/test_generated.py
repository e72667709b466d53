"""What README and guide have from the code is as the code has it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import generated
import pytest
import road_picture

from slime_agl.cli.main import main
from slime_agl.cli.reference import reference

MADE = generated.made()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_file_with_generated_parts_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path], "run scripts/readme"


def test_every_command_has_its_section() -> None:
    shown = {name for name, command in main.commands.items() if not command.hidden}
    assert set(re.findall(r"(?m)^## slime-agl (\S+)$", reference(main))) == shown


def test_the_help_is_the_same_in_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reference(main)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert reference(main) == before
    assert max(map(len, before.splitlines())) <= 94


@pytest.mark.parametrize("theme", road_picture.THEMES)
def test_the_picture_is_well_formed_and_its_boxes_are_inside(theme: str) -> None:
    root = ElementTree.fromstring(road_picture.svg(theme))
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, width, height = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x and x + width <= road_picture.WIDTH and 0 <= y and y + height <= road_picture.HEIGHT
    said = " ".join(root.itertext())
    assert {"gateway", "ledger", "segments", "credit", "Samples"} <= set(said.split())

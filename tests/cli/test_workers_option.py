"""`--workers`: what it makes of an `agl:` section."""

from __future__ import annotations

import pytest

from slime_agl.cli.workers import in_workers, told
from slime_agl.config import Config
from slime_agl.errors import ConfigError


def test_it_sets_the_count_and_keeps_other_keys() -> None:
    section = {"agent": "a.b", "workers": {"slots": 3, "count": 7}}
    assert in_workers(section, 2) == {"agent": "a.b", "workers": {"slots": 3, "count": 2}}
    assert in_workers({"agent": "a.b", "workers": None}, 2)["workers"] == {"count": 2}
    assert section["workers"]["count"] == 7, "the caller's section is left as it was"


def test_without_it_the_section_decides_and_0_is_this_process() -> None:
    section = {"agent": "a.b", "workers": {"count": 7}}
    assert in_workers(section, None) == section
    assert Config.read(in_workers(section, 0)).workers.count == 0


def test_a_key_that_is_no_mapping_is_still_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="agl.workers must be a mapping"):
        Config.read(in_workers({"agent": "a.b", "workers": 3}, 2))


def test_a_report_says_where_agents_run() -> None:
    assert [told(count) for count in (None, 0, 1, 2)] == ["", "", ", agents in 1 worker", ", agents in 2 workers"]

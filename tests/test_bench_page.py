"""The page's benchmark makes the run that it claims to measure; its times do not matter here."""

from __future__ import annotations

from pathlib import Path

from slime_agl.record.reading import read_run
from slime_agl.report.checks import judge
from slime_agl.report.summary import readable


def test_a_made_run_has_the_size_asked_for_and_breaks_nothing(tmp_path: Path):
    from bench.made_run import write_run

    write_run(tmp_path, executions=40, tokens=8000)
    records = read_run(tmp_path)
    pairs, unreadable = readable(records)
    assert (len(records), len(pairs), unreadable) == (4, 40, [])
    tokens = sum(len(turn.new_ids) + turn.output_length for _, one in pairs for turn in one.ledger.turns)
    assert 8000 <= tokens < 16000
    assert all(one.said.keys() == set(range(len(one.ledger.turns))) for _, one in pairs)
    found = {finding.name: finding.verdict for finding in judge(records)}
    assert found["each sampled token trains once, or has a reason not to"] == found["tokens train"] == "pass"
    assert any(len(one.segments) > 1 for _, one in pairs) and any(one.failure for _, one in pairs)

from __future__ import annotations

import json

import pytest

from tests.conftest import flat

pytest.importorskip("agents", reason="the example is written with openai-agents")
pytest.importorskip("bm25s", reason="the example searches with bm25s")


def test_facts_are_followed_from_search_to_search_in_one_segment(run_example):
    output = run_example("search_r1", count=6)
    assert [sample.reward for sample in flat(output.samples)] == [1.0] * 6
    assert output.metrics["rollout/agl/segments_per_execution"] == 1
    assert output.metrics["rollout/agl/turns_per_execution"] >= 3


def test_giving_up_gives_no_reward(run_example):
    assert [sample.reward for sample in flat(run_example("search_r1", luck=0.9).samples)] == [0.0, 0.0]


def test_an_agent_that_searches_for_ever_is_stopped_and_still_trains(run_example, fake_sglang):
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "river"}}\n</tool_call>'
    output = run_example("search_r1", count=1, answer=lambda request: call)
    assert [sample.reward for sample in flat(output.samples)] == [0.0]
    assert len(fake_sglang.requests) == 6


def test_every_answer_stands_in_the_corpus():
    from search_r1 import data

    passages = "\n".join(row["text"] for row in data.corpus())
    assert [json.loads(line) for line in (data.HERE / "corpus.jsonl").read_text().splitlines()] == data.corpus()
    assert all(row["label"] in passages for made in data.rows().values() for row in made)


def test_a_query_without_a_known_word_finds_nothing():
    from search_r1.agent import Index

    index = Index(["the river flows", "a town stands"])
    assert index.search("river", 1) == ["the river flows"]
    assert index.search("zebra", 1) == [] and index.search("", 1) == []

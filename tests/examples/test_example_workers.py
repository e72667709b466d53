from __future__ import annotations

import pytest

from tests.conftest import flat


def test_a_writer_hears_what_is_missing_and_is_scored_by_its_last_sentence(run_example, fake_sglang):
    rows = [{"prompt": "Write one short sentence with the words lamp, river and carry.", "label": "lamp river carry"}]
    said = iter(["They carry a lamp.", "They carry a lamp along the rivers."])
    output = run_example("workers", rows=rows, answer=lambda request: next(said))
    assert "These words are missing: river. Again." in fake_sglang.requests[1].text
    (sample,) = flat(output.samples)
    assert 0.5 < sample.reward < 1.0 and output.metrics["rollout/agl/segments_per_execution"] == 1


@pytest.mark.parametrize(
    ("sentence", "low", "high"),
    [
        ("A lamp by the river.", 0.3, 0.7),
        ("nothing of it", 0.0, 0.0),
        ("lamp river carry " * 30, 0.0, 0.4),
    ],
)
def test_scores_count_words_and_length(sentence: str, low: float, high: float):
    from workers.agent import score

    assert low <= score(sentence, ["lamp", "river", "carry"]) <= high


def test_a_worn_phrase_is_worth_less():
    from workers.agent import WORN, score

    worn = "Once upon a time there was the quiet village where a young girl lived."
    assert worn in WORN
    fresh = "My lodger painted every quiet hallway girl by girl."
    assert score(worn, ["quiet", "girl"]) == 0.5 < score(fresh, ["quiet", "girl"])

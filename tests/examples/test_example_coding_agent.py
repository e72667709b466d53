from __future__ import annotations

import pytest

from tests.conftest import flat

pytest.importorskip("anthropic", reason="the example is written with the anthropic client")


def test_scout_and_compaction_are_samples_of_one_execution(run_example):
    output = run_example("coding_agent")
    for (run,) in output.samples:
        assert len(run) == 3 and len({sample.rollout_id for sample in run}) == 1
        assert [sample.reward for sample in run] == [1.0] * 3
        scouts = [sample for sample in run if "list_files" in sample.response]
        before = [sample for sample in run if "edit_file" in sample.response]
        after = [sample for sample in run if "The faulty line is mended" in sample.response]
        assert len(scouts) == len(before) == len(after) == 1
        assert "mended the faulty line. What is left" in before[0].response
    assert output.metrics["rollout/agl/forks/new_conversation"] == 4


def test_a_repository_that_stays_broken_gives_no_reward(run_example):
    assert [sample.reward for sample in flat(run_example("coding_agent", luck=0.95).samples)] == [0.0, 0.0]


async def test_the_tests_that_count_are_the_given_ones():
    from coding_agent.workspace import Workspace

    with Workspace(
        {"a.py": "x = 1\n", "tests.py": "from a import x\nassert x == 2\nprint('all tests pass')\n"}
    ) as work:
        await work.use("edit_file", {"path": "tests.py", "old": "assert x == 2", "new": ""})
        assert "all tests pass" in await work.use("run_tests", {})
        assert not await work.passes()
        assert await work.use("edit_file", {"path": "a.py", "old": "1", "new": "2"}) == "edited a.py"
        assert await work.passes()


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("read_file", {"path": "../secret"}, "outside"),
        ("read_file", {}, "path"),
        ("edit_file", {"path": "a.py", "old": "a", "new": "b"}, "2 times"),
        ("format_disk", {}, "no tool"),
    ],
)
async def test_a_call_that_cannot_be_done_is_told_so(name: str, arguments: dict, says: str):
    from coding_agent.workspace import Workspace

    with Workspace({"a.py": "a = 'a'\n", "tests.py": ""}) as work:
        assert says in await work.use(name, arguments)

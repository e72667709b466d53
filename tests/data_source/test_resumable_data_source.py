"""The durable data source: what a run that was cut gives out again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from slime_agl.data_source import ResumableDataSource
from slime_agl.errors import HostError
from slime_agl.host import Sample, default_args
from slime_agl.rollout import generate

# In each order of calls: while agents run, before and after slime has the weights, in the middle of a write.
KILLED = [
    ("train", "agent call", 7),
    ("train", "weights saved", 1),
    ("train", "half written", 3),
    ("train_async", "generated", 3),
    ("train_async", "weights saved", 1),
]


@pytest.fixture(scope="module")
def drills(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, dict[str, Any]]:
    """What became of each killed run. One process: the imports take longer than the runs."""
    command = [sys.executable, str(Path(__file__).with_name("drill.py")), str(tmp_path_factory.mktemp("drill"))]
    command += [str(word) for case in KILLED for word in case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(KILLED, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("case", KILLED, ids=lambda case: " ".join(map(str, case)))
def test_every_prompt_comes_back_exactly_once_after_a_kill(drills: Any, case: Any) -> None:
    found = drills[case]
    killed, ended = found["ended"]
    assert (killed, ended) == (9, 0)
    numbers = [number for number, _ in [*found["weights"], *found["left"]]]
    assert sorted(numbers) == list(range(found["given"]))
    for number, prompt in [*found["weights"], *found["left"]]:
        assert prompt in (None, found["prompts"][number])  # None: it was dropped by the filter


@pytest.fixture
def made(tmp_path: Path, tiny_checkpoint: Path) -> Any:
    """A function: a data source over ten rows, which saves and loads below a directory of the test."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"input": f"row {at}"}) + "\n" for at in range(10)), encoding="utf-8")

    def make(**overrides: Any) -> ResumableDataSource:
        given = {"prompt_data": str(path), "n_samples_per_prompt": 2, "save": str(tmp_path), "load": str(tmp_path)}
        given["hf_checkpoint"] = str(tiny_checkpoint)  # slime's own class loads it in any case
        return ResumableDataSource(default_args(**{**given, **overrides}))

    return make


def prompts(groups: list[list[Any]]) -> list[str]:
    return [group[0].prompt for group in groups]


def test_the_buffer_survives_with_all_that_its_samples_hold(made: Any) -> None:
    source = made()
    group, *_ = source.get_samples(3)
    group[0].append_response_tokens(None, tokens=[1, 2], log_probs=[-0.5, -0.25], text="ab")
    group[0].status = Sample.Status.ABORTED
    group[0].metadata["start_rollout_id"] = 4
    source.add_samples([group])
    source.save(4)
    again = made()
    again.load(4)
    back, fresh = again.get_samples(2)
    assert [sample.to_dict() for sample in back] == [sample.to_dict() for sample in group]
    assert fresh[0].prompt == "row 3" and (fresh[0].group_index, fresh[0].index) == (3, 6)


def test_only_the_last_states_are_kept_until_slime_saves_one(made: Any, tmp_path: Path) -> None:
    source = made()
    for step in range(6):
        source.step_ended(step)
        if step == 1:
            source.save(step)
    kept = sorted(int(path.stem.rpartition("_")[2]) for path in tmp_path.glob("rollout/resumable_*"))
    assert kept == [1, 3, 4, 5]


def test_a_run_of_slimes_own_data_source_can_be_taken_up(made: Any, tmp_path: Path) -> None:
    source = made()
    source.get_samples(4)
    source.save(0)
    (tmp_path / "rollout" / "resumable_data_source_0.pkl").unlink()
    again = made()
    again.load(0)
    assert prompts(again.get_samples(1)) == ["row 4"]


def test_without_a_state_or_a_directory_it_starts_at_the_first_row(made: Any) -> None:
    for source in (made(), made(load=None), made(save=None)):
        source.load(-1)
        assert prompts(source.get_samples(1)) == ["row 0"]
        if source.args.save is None:
            source.step_ended(0)


def test_a_state_that_cannot_be_used_is_refused(made: Any, tmp_path: Path) -> None:
    source = made()
    source.add_samples(source.get_samples(1))
    source.save(0)
    with pytest.raises(HostError, match="groups of \\[2\\] samples, --n-samples-per-prompt is 3"):
        made(n_samples_per_prompt=3).load(0)
    path = tmp_path / "rollout" / "resumable_data_source_0.pkl"
    os.truncate(path, 5)
    with pytest.raises(HostError, match="cannot be read"):
        made().load(0)


def test_a_state_after_an_earlier_step_has_the_batch_of_the_later_one(
    fake_sglang: Any, run_rollout: Any, made: Any, rollout_args: Any
) -> None:
    """train_async.py saves step 0 when step 1 is generated: the groups of step 1 come again."""
    fake_sglang.answer_with(lambda request: "ok")
    flags = {
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "agl": {"agent": "slime_agl.testing.agents.chat_agent"},
    }
    source = made(save=None)
    for step in (0, 1):
        generate(rollout_args(**flags), step, source)
    source.args.save = source.args.load
    source.save(0)
    again = made()
    again.load(0)
    assert prompts(again.get_samples(3)) == ["row 2", "row 3", "row 4"]


def test_it_names_the_reward_normalisation_unless_the_user_has() -> None:
    args = Namespace(rollout_global_dataset=False, buffer_filter_path=None, n_samples_per_prompt=2)
    ResumableDataSource(args)
    assert args.custom_reward_post_process_path == "slime_agl.reward.normalize_rewards"
    args = default_args(custom_reward_post_process_path="my.own")
    ResumableDataSource(args)
    assert args.custom_reward_post_process_path == "my.own"

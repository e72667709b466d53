"""The durable data source: what an interrupted run gives out again."""

from __future__ import annotations

import datetime
import json
import os
import pickle
import random
import subprocess
import sys
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from slime_agl import data_source
from slime_agl.data_source import ResumableDataSource
from slime_agl.errors import HostError
from slime_agl.host import Sample, default_args, state_file
from slime_agl.outstanding import Outstanding
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
    assert found["parts"] == []
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
        source.step_ended(step, Outstanding())
        if step == 1:
            source.save(step)
    kept = sorted(int(path.stem.rpartition("_")[2]) for path in tmp_path.glob("rollout/resumable_*"))
    assert kept == [1, 3, 4, 5]


def state_of(tmp_path: Path, step: int = 0) -> Path:
    return tmp_path / "rollout" / f"resumable_data_source_{step}.jsonl"


def test_a_run_of_slimes_own_data_source_can_be_taken_up_when_the_user_says_so(made: Any, tmp_path: Path) -> None:
    source = made()
    source.get_samples(4)
    source.save(0)
    state_of(tmp_path).unlink()
    with pytest.raises(HostError, match=r"resumable_data_source_0.jsonl does not exist beside .*agl.resume: position"):
        made().load(0)
    again = made(agl={"resume": "position"})
    again.load(0)
    assert prompts(again.get_samples(1)) == ["row 4"]


def test_a_step_without_its_state_among_others_is_refused(made: Any) -> None:
    source = made()
    source.save(0)
    with pytest.raises(HostError, match="there are states after steps 0"):
        made().load(3)
    made().load(-1)  # a run that begins anew beside what an earlier one left


def test_a_pickle_of_an_earlier_version_is_not_loaded(made: Any, tmp_path: Path) -> None:
    class Loud:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "it ran"),)

    (tmp_path / "rollout").mkdir()
    state_of(tmp_path).with_suffix(".pkl").write_bytes(pickle.dumps({"format": 1, "groups": Loud()}))
    with pytest.raises(HostError, match="a pickle of an earlier version, which is not read"):
        made().load(0)
    state_of(tmp_path).write_bytes(state_of(tmp_path).with_suffix(".pkl").read_bytes())
    with pytest.raises(HostError, match="is damaged or of another version"):
        made().load(0)
    assert not (tmp_path / "it ran").exists()


def test_any_flipped_bit_is_noticed(made: Any, tmp_path: Path) -> None:
    source = made()
    source.add_samples(source.get_samples(2))
    source.save(0)
    whole = state_of(tmp_path).read_bytes()
    places = random.Random(0).sample(range(8 * len(whole)), 1500)
    for place in [*range(8 * 140), *places]:  # every bit of the first line, and some of the rest
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        state_of(tmp_path).write_bytes(flipped)
        with pytest.raises(HostError, match="resumable_data_source_0.jsonl is damaged or of another version"):
            data_source._read(state_of(tmp_path), 2)


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda whole: whole[:-10], "length should be [0-9]+ and is [0-9]+, sha256 should be"),
        (lambda whole: whole[:5], "its first line of 5 bytes is not a header, 0 bytes follow"),
        (lambda whole: b"", "its first line of 0 bytes is not a header"),
        (lambda whole: whole.replace(b"row 0", b"row 9"), "sha256 should be '[0-9a-f]{64}' and is '[0-9a-f]{64}'"),
        (lambda whole: whole.replace(b'"version":2', b'"version":3'), "version 3, this version reads .* version 2"),
    ],
)
def test_damage_is_told_with_both_sides_and_the_next_step(made: Any, tmp_path: Path, damage: Any, words: str) -> None:
    source = made()
    source.add_samples(source.get_samples(1))
    source.save(0)
    state_of(tmp_path).write_bytes(damage(state_of(tmp_path).read_bytes()))
    with pytest.raises(HostError, match=f"{words}.*; set agl.resume: position and remove it"):
        made().load(0)


def test_a_write_that_fails_leaves_the_state_that_was_there(made: Any, tmp_path: Path, monkeypatch: Any) -> None:
    source = made()
    source.save(0)
    before = state_of(tmp_path).read_bytes()

    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_file, "_write", full)
    source.get_samples(1)
    with pytest.raises(HostError, match=r"resumable_data_source_0.jsonl cannot be written \(No space left on device\)"):
        source.save(0)
    assert state_of(tmp_path).read_bytes() == before and not list(tmp_path.rglob("*.part"))


def test_what_killed_runs_left_is_removed(made: Any, tmp_path: Path) -> None:
    source = made()
    source.step_ended(0, Outstanding())
    source.save(0)
    for step in (1, 2):
        source.step_ended(step, Outstanding())
    part = state_of(tmp_path, 3).with_suffix(".jsonl.0a0b0c0d.part")
    part.write_bytes(b"half")
    again = made()
    assert not part.exists()
    again.load(0)
    for step in (1, 2, 3, 4):
        again.step_ended(step, Outstanding())
    kept = sorted(int(path.stem.rpartition("_")[2]) for path in tmp_path.glob("rollout/resumable_*"))
    assert kept == [0, 2, 3, 4]


def test_states_that_a_killed_run_did_not_come_to_save_are_counted_with_the_new_ones(made: Any, tmp_path: Path) -> None:
    source = made()
    for step in (7, 8):
        source.step_ended(step, Outstanding())
    again = made()
    again.load(-1)
    for step in (0, 1, 2):
        again.step_ended(step, Outstanding())
    kept = sorted(int(path.stem.rpartition("_")[2]) for path in tmp_path.glob("rollout/resumable_*"))
    assert kept == [0, 1, 2]


def test_what_cannot_be_held_is_refused_by_name_before_anything_is_generated(made: Any) -> None:
    source = made()
    (group,) = source.get_samples(1)
    group[0].metadata["judge"] = threading.Lock()
    source.add_samples([group])
    with pytest.raises(HostError, match=r"sample 0.metadata\['judge'\] is a _thread.lock, .* put one of these"):
        source.save(0)
    source.dataset.samples[0].metadata["when"] = datetime.date(2024, 1, 1)
    with pytest.raises(HostError, match=r"metadata\['when'\] is a datetime.date"):
        source._refuse_unwritable_rows()


def test_without_a_state_or_a_directory_it_starts_at_the_first_row(made: Any) -> None:
    for source in (made(), made(load=None), made(save=None)):
        source.load(-1)
        assert prompts(source.get_samples(1)) == ["row 0"]
        if source.args.save is None:
            source.step_ended(0, Outstanding())


def test_a_state_that_cannot_be_used_is_refused(made: Any, tmp_path: Path) -> None:
    source = made()
    source.add_samples(source.get_samples(1))
    source.save(0)
    with pytest.raises(HostError, match="groups of \\[2\\] samples, --n-samples-per-prompt is 3"):
        made(n_samples_per_prompt=3).load(0)


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

"""Pausing, flushing and new weights."""

from __future__ import annotations

import threading

import pytest
from local_helpers import last, tiny_model

from slime_agl.errors import ConfigError
from slime_agl.local.engine.score import teacher_logprobs


def partial(engine, steps, **options):
    """A greedy request with three tokens sampled, held before the fourth."""
    updates = engine.send([1, 2, 3], stream=True, temperature=0, max_new_tokens=200)
    steps.allow(3)
    for _ in range(3):
        updates.get(timeout=20)
    return updates


def pause(engine, steps, mode):
    """Pause from another thread while the model stands at the gate, then let it go on."""
    thread = threading.Thread(target=engine.backend.pause, args=(mode,))
    thread.start()
    steps.open()
    thread.join(timeout=20)


def test_a_pause_aborts_everything_in_flight(drive, gate):
    model, steps = gate
    engine = drive(of=model)
    updates = partial(engine, steps)
    pause(engine, steps, "abort")
    answer = last(updates)
    assert answer.finish.kind == "abort" and 3 <= len(answer.output_ids) < 200
    assert engine.backend.flush_cache()


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_held_request_goes_on_after_the_pause_as_if_there_was_none(drive, gate, mode):
    model, steps = gate
    engine = drive(of=model)
    updates = partial(engine, steps)
    pause(engine, steps, mode)
    load = engine.backend.load()
    assert (load.running, load.waiting) == ((0, 1) if mode == "retract" else (1, 0))
    assert engine.backend.flush_cache() is (mode == "retract")
    engine.backend.resume()
    assert last(updates).output_ids == drive().ask([1, 2, 3], temperature=0, max_new_tokens=200).output_ids


def test_requests_that_arrive_while_paused_wait(drive):
    engine = drive()
    engine.backend.pause("abort")
    updates = engine.send([1, 2, 3])
    assert engine.backend.flush_cache() and updates.empty()
    assert engine.backend.load().waiting == 1
    engine.backend.resume()
    assert len(last(updates).output_ids) == 12


def test_new_weights_answer_under_their_version_and_forget_old_keys(drive, model, tmp_path):
    other = tiny_model(seed=1)
    other.save_pretrained(tmp_path)
    engine = drive(of=tiny_model())
    before = engine.ask([1, 2, 3, 4], temperature=0)
    engine.backend.update_weights(str(tmp_path), "7")
    after = engine.ask([1, 2, 3, 4], temperature=0)
    assert (before.weight_version, after.weight_version) == ("default", "7")
    assert (after.cached_tokens, before.output_ids != after.output_ids) == (0, True)
    teacher = teacher_logprobs(other, [1, 2, 3, 4, *after.output_ids], 12, 0)
    assert max(abs(a - b) for a, b in zip(after.logprobs, teacher, strict=True)) < 1e-4


def test_new_weights_wait_for_running_requests_so_that_each_has_one_version(drive, gate):
    model, steps = gate
    engine = drive(of=model)
    updates = partial(engine, steps)
    thread = threading.Thread(target=engine.backend.set_weights, args=(tiny_model(seed=1).state_dict(), "2"))
    thread.start()
    steps.open()
    answer = last(updates)
    thread.join(timeout=20)
    assert (answer.weight_version, len(answer.output_ids)) == ("default", 200)
    assert answer.output_ids == drive().ask([1, 2, 3], temperature=0, max_new_tokens=200).output_ids
    assert engine.ask([1]).weight_version == "2"


def test_keys_of_old_weights_are_not_reused_after_an_update_in_place(drive, gate):
    model, steps = gate
    engine = drive(of=model)
    updates = partial(engine, steps)
    pause(engine, steps, "in_place")
    engine.backend.set_weights(tiny_model(seed=1).state_dict(), "2")
    engine.backend.resume()
    answer = last(updates)
    again = engine.ask([1, 2, 3, *answer.output_ids], temperature=0)
    assert (answer.weight_version, again.cached_tokens) == ("2", 0)


def test_weights_of_another_shape_are_refused_and_the_old_ones_stay(drive):
    engine = drive(of=tiny_model())
    before = engine.ask([1, 2, 3], temperature=0)
    state = tiny_model(seed=1).state_dict()
    with pytest.raises(ConfigError, match=r"lack 1 tensors.*lm_head"):
        engine.backend.set_weights({k: v for k, v in state.items() if k != "lm_head.weight"}, "2")
    with pytest.raises(ConfigError, match=r"\(10, 32\) in the new weights, \(300, 32\) here"):
        engine.backend.set_weights({**state, "lm_head.weight": state["lm_head.weight"][:10]}, "2")
    after = engine.ask([1, 2, 3], temperature=0)
    assert (after.output_ids, after.weight_version) == (before.output_ids, "default")

"""How requests end: stops, limits, aborts."""

from __future__ import annotations

import pytest
from local_helpers import EOS, ByteTokenizer, last

from slime_agl.errors import EngineError
from slime_agl.local.engine.backend import Finish
from slime_agl.local.engine.sampling import SamplingParams
from slime_agl.local.engine.stopping import finish_of, text_of

BYTES = ByteTokenizer()


def ends(output: bytes | list[int], **params):
    given = SamplingParams(**{"max_new_tokens": 100, **params})
    finish = finish_of(list(output), given, frozenset({EOS}), BYTES)
    return finish, text_of(list(output), given, finish, BYTES)


def test_an_end_of_sequence_id_ends_and_is_named():
    finish, text = ends([*b"hi", EOS], skip_special_tokens=False)
    assert (finish, text) == (Finish("stop", matched=EOS), "hi")


def test_the_stop_stays_in_the_text_when_asked():
    assert ends([*b"hi", EOS], skip_special_tokens=False, no_stop_trim=True)[1] == "hi<eos>"
    assert ends(b"hi END", stop=("END",), no_stop_trim=True)[1] == "hi END"


def test_a_stop_string_may_be_spread_over_tokens():
    assert ends(b"hi EN", stop=("END",))[0] is None
    assert ends(b"hi END", stop=("never", "END")) == (Finish("stop", matched="END"), "hi ")


def test_a_stop_string_of_many_bytes_to_a_character_is_found():
    text = "so … 終わり"
    assert ends(text.encode(), stop=("終わり",)) == (Finish("stop", matched="終わり"), "so … ")


def test_a_stop_id_of_the_request_ends_it():
    assert ends(b"abc", stop_token_ids=(ord("c"),)) == (Finish("stop", matched=ord("c")), "ab")


def test_ignore_eos_ignores_every_stop_id_but_no_stop_string():
    assert ends([*b"hi", EOS], ignore_eos=True, stop_token_ids=(EOS,))[0] is None
    assert ends(b"hi END", ignore_eos=True, stop=("END",))[0] == Finish("stop", matched="END")


def test_the_length_limit_is_looked_at_before_the_stops():
    assert ends([1, EOS], max_new_tokens=2)[0] == Finish("length")


def test_unfinished_text_ends_before_a_half_sampled_character():
    assert ends("aé".encode()[:-1]) == (None, "a")


def test_min_new_tokens_forbids_stop_ids_until_then(drive):
    engine = drive()
    plain = engine.ask([1, 2, 3], temperature=0)
    stop = plain.output_ids[2]
    short = engine.ask([1, 2, 3], temperature=0, ignore_eos=False, stop_token_ids=(stop,))
    longer = engine.ask([1, 2, 3], temperature=0, ignore_eos=False, stop_token_ids=(stop, 10**6), min_new_tokens=8)
    assert len(short.output_ids) <= 3
    assert len(longer.output_ids) >= 8 and stop not in longer.output_ids[:8]


def test_no_tokens_asked_for_none_sampled(drive):
    answer = drive().ask([1, 2, 3], max_new_tokens=0)
    assert (answer.output_ids, answer.finish) == ((), Finish("length"))


def test_a_stream_grows_by_one_token(drive):
    updates = drive().send([1, 2, 3], stream=True, temperature=0, max_new_tokens=4)
    seen = [updates.get(timeout=20) for _ in range(4)]
    assert [len(update.output_ids) for update in seen] == [1, 2, 3, 4]
    assert [update.finish for update in seen] == [None, None, None, Finish("length")]


def test_an_aborted_request_answers_with_what_it_has(drive, gate):
    model, steps = gate
    engine = drive(of=model)
    whole = drive().ask([1, 2, 3], temperature=0)
    updates = engine.send([1, 2, 3], rid="mine", stream=True, temperature=0)
    steps.allow(3)
    for _ in range(3):
        updates.get(timeout=20)
    engine.backend.abort("another")
    engine.backend.abort("mine")
    steps.allow(1)
    answer = last(updates)
    assert answer.finish.kind == "abort"
    # The abort may meet the backend just before or just after the fourth pass.
    assert answer.output_ids == whole.output_ids[: len(answer.output_ids)] and len(answer.output_ids) in (3, 4)
    assert (engine.backend.load().running, engine.backend.load().waiting) == (0, 0)


def test_a_waiting_request_is_aborted_with_no_output(drive):
    engine = drive()
    engine.backend.pause("abort")
    updates = engine.send([1, 2, 3])
    engine.backend.abort(None)
    answer = last(updates)
    assert (answer.output_ids, answer.finish.kind) == ((), "abort")


def test_a_failing_model_fails_its_requests_and_the_next_one_works(drive, gate):
    model, steps = gate
    steps.open()
    broken = model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
    engine = drive(of=model)
    with pytest.raises(EngineError, match="ZeroDivisionError") as failure:
        engine.ask([1, 2, 3])
    assert failure.value.status == 500
    broken.remove()
    assert len(engine.ask([1, 2, 3]).output_ids) == 12


def test_broken_weights_are_an_error_not_a_token(drive, gate):
    model, steps = gate
    steps.open()
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(EngineError, match="weights are broken"):
        drive(of=model).ask([1, 2, 3])


def test_closing_aborts_what_runs_and_refuses_what_comes(drive, gate):
    model, steps = gate
    engine = drive(of=model)
    updates = engine.send([1, 2, 3], max_new_tokens=1_000)
    steps.open()
    engine.backend.close()
    assert last(updates).finish.kind == "abort"
    with pytest.raises(EngineError, match="closed"):
        engine.send([1])

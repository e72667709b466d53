"""Bytes to the engine and back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.wire import TryAgain, nothing_sampled, read_answer, refuse, request_body, words_of
from slime_agl.errors import EngineRejected

REQUEST = EngineRequest(b"1,2,3", 3, {"temperature": 0.5, "max_new_tokens": 2}, "ro-1", "session")


def answer(**meta: Any) -> bytes:
    return orjson.dumps({"text": "", "meta_info": meta})


def read(**meta: Any):
    return read_answer(answer(**meta), REQUEST, latency=0.25)


def test_body_holds_the_given_ids_and_asks_for_logprobs():
    body = orjson.loads(request_body(REQUEST, "rid-7"))
    assert body == {
        "input_ids": [1, 2, 3],
        "sampling_params": {"temperature": 0.5, "max_new_tokens": 2},
        "return_logprob": True,
        "stream": False,
        "rid": "rid-7",
    }


def test_body_carries_extra_fields_and_refuses_those_it_sets_itself():
    extra = EngineRequest(b"", 0, {}, "r", "s", {"image_data": ["data:x"]})
    assert orjson.loads(request_body(extra, "r"))["image_data"] == ["data:x"]
    with pytest.raises(ValueError, match="rid"):
        request_body(EngineRequest(b"", 0, {}, "r", "s", {"rid": "mine"}), "r")


def test_ids_logprobs_and_counts_are_read_from_meta_info():
    sampled = read(
        output_token_logprobs=[[-0.5, 11, None], [-0.25, 12, "x"]],
        finish_reason={"type": "stop", "matched": 12},
        prompt_tokens=3,
        cached_tokens=2,
        weight_version=7,
    )
    assert (list(sampled.ids), list(sampled.logprobs)) == ([11, 12], [-0.5, -0.25])
    assert (sampled.finish, sampled.matched) == ("stop", 12)
    assert (sampled.prompt_tokens, sampled.cached_tokens, sampled.weight_version) == (3, 2, "7")
    assert sampled.latency == 0.25


@pytest.mark.parametrize(
    ("reason", "finish", "matched"),
    [
        ({"type": "stop", "matched": "\n\n"}, "stop", "\n\n"),
        ({"type": "length", "length": 2}, "length", None),
        ({"type": "abort", "message": "Aborted"}, "abort", None),
        ({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}, "abort", None),
        ("length", "length", None),
        ("stop", "stop", None),
        (None, "stop", None),
        ({"type": "something new"}, "stop", None),
    ],
)
def test_finish_reason_in_all_its_shapes(reason: Any, finish: str, matched: Any):
    sampled = read(output_token_logprobs=[[-0.5, 11, None]], finish_reason=reason)
    assert (sampled.finish, sampled.matched) == (finish, matched)


def test_without_a_finish_reason_the_count_tells_a_length_stop():
    assert read(output_token_logprobs=[[-0.5, 11], [-0.5, 12]]).finish == "length"


def test_an_abort_before_the_first_token_is_empty():
    sampled = read(finish_reason={"type": "abort"}, completion_tokens=0)
    assert (len(sampled.ids), sampled.finish, sampled.prompt_tokens) == (0, "abort", 3)
    assert nothing_sampled(REQUEST).finish == "abort"


def test_unknown_scalars_are_kept_and_bulk_is_dropped():
    sampled = read(
        output_token_logprobs=[],
        reasoning_tokens=4,
        id="abc",
        cached_tokens_details={"device": 1},
        input_token_logprobs=[[None, 1]],
        routed_experts="AAAA",
        routed_experts_start_len=1,
        top_p_token_ids=[1, 2],
        note="n" * 1000,
    )
    assert sampled.meta.keys() == {"reasoning_tokens", "id"}
    assert (sampled.experts, sampled.top_p) == (None, None), "nobody asked for them"


def test_tokens_without_logprobs_are_refused():
    with pytest.raises(EngineRejected, match="ro-1 was answered with 5 tokens and no output_token_logprobs"):
        read(completion_tokens=5, finish_reason={"type": "stop"})


def test_a_null_logprob_is_refused_by_its_place():
    with pytest.raises(EngineRejected, match="logprob 1 of 2 is null"):
        read(output_token_logprobs=[[-0.5, 11], [None, 12]])


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b'{"choices": []}'])
def test_a_body_that_is_no_generate_answer_is_refused(body: bytes):
    with pytest.raises(EngineRejected, match="without `meta_info`"):
        read_answer(body, REQUEST, 0.0)


def test_an_abort_that_tells_of_a_bad_request_is_a_refusal_in_the_engines_words():
    reason = {"type": "abort", "status_code": 400, "err_type": "BadRequestError", "message": "Input too long"}
    with pytest.raises(EngineRejected, match="HTTP 400: Input too long") as caught:
        read(finish_reason=reason)
    assert caught.value.status == 400


def test_an_abort_that_tells_of_a_full_queue_may_be_tried_again():
    with pytest.raises(TryAgain, match="queue is full"):
        read(finish_reason={"type": "abort", "status_code": 503, "message": "queue is full"})


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_faults_may_be_tried_again(status: int):
    with pytest.raises(TryAgain):
        refuse(status, "words", REQUEST)


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413, 422, 501])
def test_other_statuses_are_refusals(status: int):
    with pytest.raises(EngineRejected, match=f"HTTP {status}: words") as caught:
        refuse(status, "words", REQUEST)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too long", "type": "x"}}', "too long"),
        (b'{"object": "error", "message": "bad", "code": 400}', "bad"),
        (b'{"detail": [{"loc": 1}]}', "[{'loc': 1}]"),
        (b'{"error": "plain"}', "plain"),
        (b'{"other": 1}', '{"other":1}'),
        (b"no workers\n", "no workers"),
        (b"", "(empty body)"),
    ],
)
def test_the_engines_words_are_found_in_every_error_shape(body: bytes, words: str):
    assert words_of(body) == words

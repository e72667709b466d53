"""Strict validation of answers: the valid forms, and every way to be wrong."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.faults import TryAgain, WrongAnswer
from slime_agl.engine.generate import largest_answer, read_answer
from slime_agl.engine.id_text import IdText
from slime_agl.errors import EngineRejected

VOCABULARY = 100
MANY = 1000
REQUEST = EngineRequest(
    prompt=IdText((b"1,2,3",), 3),
    sampling_params={"temperature": 0.5, "max_new_tokens": 3},
    rid="ro-1",
    session_key="session",
)
# As SGLang 0.5.15.post1 answers, field by field.
TRUE = {
    "id": "1~ro-1",
    "finish_reason": {"type": "stop", "matched": 12},
    "prompt_tokens": 3,
    "weight_version": "7",
    "num_retractions": 0,
    "input_token_logprobs": [],
    "output_token_logprobs": [[-0.5, 11, None], [-0.25, 12, "x"]],
    "output_token_logprobs_length": 2,
    "reasoning_tokens": 0,
    "completion_tokens": 2,
    "cached_tokens": 2,
    "cached_tokens_details": {"device": 2, "host": 0},
    "dp_rank": None,
    "e2e_latency": 0.5,
    "response_sent_to_client_ts": 1.0,
}


def read(
    meta: dict[str, Any] | None = None,
    *,
    ids: Any = None,
    request: EngineRequest = REQUEST,
    vocab: int | None = VOCABULARY,
    **changed: Any,
):
    """Pass `TRUE` with these fields changed, and output_ids, through the door; ... takes a field away."""
    given = {name: value for name, value in {**(TRUE if meta is None else meta), **changed}.items() if value is not ...}
    whole = {"text": "", "meta_info": given} | ({} if ids is None else {"output_ids": ids})
    return read_answer(orjson.dumps(whole), request, "1~ro-1", vocab_size=vocab, latency=0.25)


def test_a_true_answer_passes_as_the_engine_wrote_it():
    sampled = read(ids=[11, 12])
    assert (list(sampled.ids), list(sampled.logprobs)) == ([11, 12], [-0.5, -0.25])
    assert (sampled.finish, sampled.matched) == ("stop", 12)
    assert (sampled.prompt_tokens, sampled.cached_tokens, sampled.weight_version) == (3, 2, "7")
    assert sampled.latency == 0.25


@pytest.mark.parametrize("name", [name for name in TRUE if name != "output_token_logprobs"])
@pytest.mark.parametrize("absent", [..., None])
def test_a_field_that_is_left_out_is_not_missed(name: str, absent: Any):
    assert list(read(**{name: absent}).ids) == [11, 12]


def test_the_least_that_is_an_answer_passes():
    sampled = read({"output_token_logprobs": [[-0.5, 11]]}, vocab=None)
    assert (list(sampled.ids), sampled.finish, sampled.prompt_tokens, sampled.weight_version) == ([11], "stop", 3, "")


@pytest.mark.parametrize(
    ("reason", "finish", "matched"),
    [
        ({"type": "stop", "matched": "\n\n"}, "stop", "\n\n"),
        ({"type": "stop", "matched": [11, 12]}, "stop", 12),
        ({"type": "length", "length": 2}, "length", None),
        ({"type": "abort", "message": "Aborted"}, "abort", None),
        ({"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}, "abort", None),
        ("length", "length", None),
        ("stop", "stop", None),
        (None, "stop", None),
        ({"type": None}, "stop", None),
        ({"type": "something new"}, "stop", None),
    ],
)
def test_finish_reason_in_all_its_shapes(reason: Any, finish: str, matched: Any):
    sampled = read(finish_reason=reason)
    assert (sampled.finish, sampled.matched) == (finish, matched)


def test_without_a_finish_reason_the_count_tells_a_length_stop():
    assert read({"output_token_logprobs": [[-0.5, 11], [-0.5, 12], [-0.5, 13]]}).finish == "length"


@pytest.mark.parametrize("entries", [..., None, []])
def test_an_abort_before_the_first_token_is_empty(entries: Any):
    """SGLang's for a request that is aborted while it waits has neither prompt_tokens nor, at times, logprobs."""
    meta = {"id": "1~ro-1", "finish_reason": {"type": "abort"}, "completion_tokens": 0, "weight_version": "7"}
    sampled = read(meta, ids=[], output_token_logprobs=entries)
    assert (len(sampled.ids), sampled.finish, sampled.prompt_tokens) == (0, "abort", 3)


def test_ids_of_a_padded_vocabulary_pass_up_to_its_last():
    assert list(read(output_token_logprobs=[[-0.5, 0], [-0.5, 99]]).ids) == [0, 99]


@pytest.mark.parametrize("value", [0, 0.0, -1, 1.2e-7, -9999.5])
def test_logprobs_at_the_edge_of_the_true_pass(value: float):
    assert list(read(output_token_logprobs=[[value, 11], [value, 12]]).logprobs) == [value, value]


def test_unknown_scalars_are_kept_and_bulk_is_dropped():
    sampled = read(routed_experts="AAAA", routed_experts_start_len=1, top_p_token_ids=[1, 2], note="n" * 1000)
    assert {"reasoning_tokens", "id", "e2e_latency"} <= sampled.meta.keys()
    dropped = {"note", "routed_experts", "cached_tokens_details", "input_token_logprobs", "top_p_token_ids"}
    assert not dropped & sampled.meta.keys()
    assert (sampled.experts, sampled.top_p) == (None, None), "nobody asked for them"


def test_what_is_kept_of_an_answer_is_bounded():
    assert len(read(**{f"x{number}": number for number in range(1000)}).meta) < 128


def test_alternatives_that_were_asked_for_are_kept():
    asked = EngineRequest(
        prompt=IdText((b"1,2,3",), 3),
        sampling_params={},
        rid="ro-1",
        session_key="session",
        extra={"top_logprobs_num": 2},
    )
    found = [[[-0.5, 11, None], [-1.5, 4, None]], None]
    assert read(request=asked, output_top_logprobs=found).meta["output_top_logprobs"] == found
    assert "output_top_logprobs" not in read(output_top_logprobs="nobody asked").meta


TWO = [[-0.5, 11, None], [-0.25, 12, None]]
ONCE, THRICE = TWO[:1], [*TWO, TWO[1]]
WRONG = {
    "another request's": ({"id": "ro-2"}, "'ro-2': it belongs to another request"),
    "an earlier try's": ({"id": "ro-1"}, "'ro-1': it belongs to another request"),
    "an id of the wrong type": ({"id": 7}, "the id 7: it belongs to another"),
    "an entry missing": (
        {"output_token_logprobs": ONCE},
        "1 entries in output_token_logprobs, completion_tokens says 2",
    ),
    "an entry doubled": (
        {"output_token_logprobs": THRICE},
        "3 entries in output_token_logprobs, completion_tokens says 2",
    ),
    "its own length wrong": ({"output_token_logprobs_length": 3}, "2 entries .*_length says 3"),
    "output_ids missing one": ({"ids": [11]}, "2 entries in output_token_logprobs and 1 output_ids"),
    "output_ids differ": ({"ids": [11, 13]}, "the id 12 at token 1 in output_token_logprobs and 13 in output_ids"),
    "true in output_ids": ({"output_token_logprobs": [[-1, 1], [-1, 2]], "ids": [True, 2]}, "and True in output_ids"),
    "a float in output_ids": ({"ids": [11.0, 12]}, "and 11.0 in output_ids"),
    "output_ids no list": ({"ids": {"0": 11}}, "output_ids of type dict"),
    "more than asked": (
        {"output_token_logprobs": TWO * 2, "completion_tokens": 4, "output_token_logprobs_length": 4},
        "has 4 tokens, max_new_tokens is 3",
    ),
    "no logprobs": ({"output_token_logprobs": ...}, "has 2 tokens and no output_token_logprobs; .*return_logprob"),
    "no logprobs, ids only": (
        {"output_token_logprobs": None, "completion_tokens": ..., "ids": [1]},
        "has 1 tokens and no",
    ),
    "id at the vocabulary": (
        {"output_token_logprobs": [TWO[0], [-1, 100]]},
        "the id 100 in .*, the vocabulary has 100",
    ),
    "id below 0": ({"output_token_logprobs": [TWO[0], [-1, -1]]}, "the id -1 in output_token_logprobs"),
    "id beyond 32 bits": ({"output_token_logprobs": [TWO[0], [-1, 2**31]], "vocab": None}, "the id 2147483648 in"),
    "true as an id": ({"output_token_logprobs": [TWO[0], [-1, True]]}, "the id True at token 1 of 2"),
    "a float as an id": ({"output_token_logprobs": [TWO[0], [-1, 12.0]]}, "the id 12.0 at token 1 of 2"),
    "a string as an id": ({"output_token_logprobs": [TWO[0], [-1, "12"]]}, "the id '12' at token 1"),
    "null as an id": ({"output_token_logprobs": [TWO[0], [-1, None]]}, "the id None at token 1"),
    "a logprob above 0": ({"output_token_logprobs": [TWO[0], [0.01, 12]]}, "the logprob 0.01 at token 1 of 2"),
    "a probability": ({"output_token_logprobs": [TWO[0], [1, 12]]}, "the logprob 1 at token 1 of 2"),
    "the logprob of 0": ({"output_token_logprobs": [[-3.4e38, 11], TWO[1]]}, "the logprob -3.4e\\+38 at token 0 of 2"),
    "an absurd logprob": ({"output_token_logprobs": [[-10001, 11], TWO[1]]}, "between -10000 and 0"),
    "NaN": ({"output_token_logprobs": [TWO[0], [None, 12]]}, "the logprob None at token 1 of 2, .*NaN"),
    "true as a logprob": ({"output_token_logprobs": [TWO[0], [False, 12]]}, "the logprob False at token 1"),
    "a string as a logprob": ({"output_token_logprobs": [["-0.5", 11], TWO[1]]}, "the logprob '-0.5' at token 0"),
    "entries swapped": ({"output_token_logprobs": [[11, -0.5], [12, -0.25]]}, "the id -0.5 at token 0"),
    "a list as an id": ({"output_token_logprobs": [TWO[0], [-1, [1, 2]]]}, r"the id \[1, 2\] at token 1"),
    "an id beyond 64 bits": ({"output_token_logprobs": [TWO[0], [-1, 1e30]]}, "the id 1e\\+30 at token 1"),
    "a list as a logprob": ({"output_token_logprobs": [TWO[0], [[-1], 12]]}, r"the logprob \[-1\] at token 1"),
    "entries no list": ({"output_token_logprobs": {"a": 1}}, "output_token_logprobs of type dict"),
    "an entry of one": ({"output_token_logprobs": [TWO[0], [-1]]}, r"entry 1 of 2 .*, \[-1\], which"),
    "an entry no list": ({"output_token_logprobs": [TWO[0], {"logprob": -1, "token": 12}]}, "entry 1 of 2"),
    "entries of text": ({"output_token_logprobs": ["ab", "cd"]}, "entry 0 of 2 .*'ab', which"),
    "completion_tokens a string": ({"completion_tokens": "2"}, "completion_tokens '2', it must be an integer"),
    "completion_tokens true": ({"completion_tokens": True}, "completion_tokens True"),
    "completion_tokens a float": ({"completion_tokens": 2.0}, "completion_tokens 2.0"),
    "prompt_tokens wrong": ({"prompt_tokens": 4}, "the engine read 4 tokens, it was sent 3"),
    "prompt_tokens below 0": ({"prompt_tokens": -3}, "prompt_tokens -3"),
    "prompt_tokens a list": ({"prompt_tokens": [3]}, r"prompt_tokens \[3\]"),
    "cached_tokens below 0": ({"cached_tokens": -1}, "cached_tokens -1"),
    "cached_tokens an object": ({"cached_tokens": {}}, "cached_tokens {}"),
    "weight_version a list": ({"weight_version": ["7"]}, r"weight_version \['7'\]"),
    "weight_version true": ({"weight_version": True}, "weight_version True"),
    "weight_version endless": ({"weight_version": "7" * 257}, "at most 256 characters"),
    "finish_reason a number": ({"finish_reason": 3}, "finish_reason 3"),
    "finish_reason a list": ({"finish_reason": ["stop"]}, r"finish_reason \['stop'\]"),
    "finish_reason.type a number": ({"finish_reason": {"type": 1}}, "finish_reason.type 1"),
    "matched true": ({"finish_reason": {"type": "stop", "matched": True}}, "finish_reason.matched True"),
    "matched an object": ({"finish_reason": {"type": "stop", "matched": {}}}, "finish_reason.matched {}"),
    "matched beyond": ({"finish_reason": {"type": "stop", "matched": 100}}, "the id 100 in finish_reason.matched"),
    "NaN at the engine": ({"finish_reason": {"type": "stop", "matched": "NaN happened"}}, "sampled from NaN"),
    "a status of text": ({"finish_reason": {"type": "abort", "status_code": "500"}}, "status_code '500'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_answer_that_is_not_true_is_tried_again(case: str):
    changed, words = WRONG[case]
    with pytest.raises(WrongAnswer, match=f"the answer to request 1~ro-1 .*{words}") as caught:
        read(**changed)
    assert len(str(caught.value)) < 400
    assert caught.value.lost == ("belongs to another" in words), "what still runs somewhere is ended there"


@pytest.mark.parametrize(
    "entry", [[-1, 100], [-1, -1], [0.5, 11], [-1e5, 11], [None, 11], [False, 11], [-1, True], [-1]]
)
def test_one_wrong_token_among_many_is_found(entry: list[Any]):
    asked = EngineRequest(prompt=IdText((b"1,2,3",), 3), sampling_params={}, rid="ro-1", session_key="session")
    entries = [[-0.5, number % VOCABULARY] for number in range(MANY)]
    assert len(read({"output_token_logprobs": entries}, request=asked).ids) == MANY
    with pytest.raises(WrongAnswer, match="entry 700 of 1000|at token 700 of 1000|the id (100|-1) in"):
        read({"output_token_logprobs": [*entries[:700], entry, *entries[701:]]}, request=asked)


@pytest.mark.parametrize(
    "found", ["x", 7, {}, [7], ["x"], [[7]], [[["x", 11]]], [[[-0.5, True]]], [[[-0.5]]], [{"a": 1}]]
)
def test_alternatives_of_wrong_types_are_tried_again(found: Any):
    asked = EngineRequest(
        prompt=IdText((b"1,2,3",), 3),
        sampling_params={},
        rid="ro-1",
        session_key="session",
        extra={"top_logprobs_num": 2},
    )
    with pytest.raises(WrongAnswer, match="output_top_logprobs"):
        read(request=asked, output_top_logprobs=found)


def test_prompts_with_images_are_counted_by_the_caller():
    shown = EngineRequest(
        prompt=IdText((b"1,2,3",), 3),
        sampling_params={},
        rid="ro-1",
        session_key="session",
        extra={"image_data": ["data:x"]},
    )
    assert read(request=shown, prompt_tokens=40).prompt_tokens == 40


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"])
def test_numbers_that_json_does_not_have_are_tried_again(literal: bytes):
    whole = b'{"meta_info":{"output_token_logprobs":[[%b,11,null]]}}' % literal
    with pytest.raises(WrongAnswer):
        read_answer(whole, REQUEST, "r", vocab_size=VOCABULARY)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>hello</html>",
        b"[]",
        b"null",
        b'"text"',
        b'{"choices": []}',
        b'{"meta_info": []}',
        b'{"meta_info": null, "output_ids": [1]}',
        b'{"meta_info": {"id": "r", "output_token_log',
        b"\xff\xfe",
        b"[" * 5000,
    ],
)
def test_a_body_that_is_no_generate_answer_is_tried_again(body: bytes):
    with pytest.raises(WrongAnswer, match="no `meta_info`|is not JSON") as caught:
        read_answer(body, REQUEST, "r")
    assert caught.value.lost and len(str(caught.value)) < 500


def test_an_abort_that_tells_of_a_bad_request_is_a_refusal_in_the_engines_words():
    reason = {"type": "abort", "status_code": 400, "err_type": "BadRequestError", "message": "Input too long"}
    with pytest.raises(EngineRejected, match="HTTP 400: Input too long") as caught:
        read(finish_reason=reason)
    assert caught.value.status == 400


def test_an_abort_that_tells_of_a_full_queue_may_be_tried_again():
    with pytest.raises(TryAgain, match="queue is full"):
        read(finish_reason={"type": "abort", "status_code": 503, "message": "queue is full"})


def test_the_bound_of_an_answer_grows_with_what_was_asked_and_holds_true_ones():
    def bound(prompt: int = 3, extra: dict[str, Any] | None = None, experts: int | None = None, **params: Any) -> int:
        return largest_answer(
            EngineRequest(
                prompt=IdText((), prompt),
                sampling_params=params,
                rid="r",
                session_key="s",
                extra=extra or {},
                experts_width=experts,
            )
        )

    few, many = bound(max_new_tokens=1), bound(max_new_tokens=4096)
    assert few < 2 << 20 and many < 8 << 20
    # 48 layers of 8 experts in base64, for prompt and output; 20 alternatives; sets of 1,000 ids.
    assert bound(100_000, experts=384, max_new_tokens=1) > 100_000 * 384 * 4 * 4 // 3
    assert bound(extra={"top_logprobs_num": 20}, max_new_tokens=4096) > 4096 * 20 * 60
    assert bound(max_new_tokens=4096, custom_params={"return_top_p_token_ids": True}) > 4096 * 1000 * 6
    assert bound() > 65536 * 100

"""Bytes to the engine and back."""

from __future__ import annotations

import orjson
import pytest

from slime_agl.engine.base import EngineRequest
from slime_agl.engine.faults import TryAgain, refuse, words_of
from slime_agl.engine.generate import nothing_sampled, request_body
from slime_agl.engine.id_text import IdText
from slime_agl.errors import EngineRejected

REQUEST = EngineRequest(
    prompt=IdText((b"1,2", b",3"), 3),
    sampling_params={"temperature": 0.5, "max_new_tokens": 2},
    rid="ro-1",
    session_key="session",
)


def test_body_holds_the_given_ids_and_asks_for_logprobs():
    body = orjson.loads(b"".join(request_body(REQUEST, "rid-7")))
    assert body == {
        "input_ids": [1, 2, 3],
        "sampling_params": {"temperature": 0.5, "max_new_tokens": 2},
        "return_logprob": True,
        "stream": False,
        "rid": "rid-7",
    }


def test_body_carries_extra_fields_and_refuses_those_it_sets_itself():
    extra = EngineRequest(
        prompt=IdText(), sampling_params={}, rid="r", session_key="s", extra={"image_data": ["data:x"]}
    )
    assert orjson.loads(b"".join(request_body(extra, "r")))["image_data"] == ["data:x"]
    with pytest.raises(ValueError, match="rid"):
        request_body(
            EngineRequest(prompt=IdText(), sampling_params={}, rid="r", session_key="s", extra={"rid": "mine"}),
            "r",
        )


def test_an_abort_before_the_first_token_is_empty():
    assert (len(nothing_sampled(REQUEST).ids), nothing_sampled(REQUEST).finish) == (0, "abort")


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

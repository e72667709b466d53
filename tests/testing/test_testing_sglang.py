"""The scripted SGLang server, over plain HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from slime_agl.testing import Answer, FakeSGLang, pseudo_logprob, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_id


def post(fake: FakeSGLang, path: str, body: dict) -> tuple[int, dict]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(fake.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.loads(response.read() or b"{}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def text(fake: FakeSGLang, path: str) -> str:
    with urllib.request.urlopen(fake.url + path) as response:
        return response.read().decode()


def get(fake: FakeSGLang, path: str) -> dict:
    return json.loads(text(fake, path))


def generate(fake: FakeSGLang, ids=(65, 66), rid: str = "r", **params) -> dict:
    status, answer = post(fake, "/generate", {"input_ids": list(ids), "sampling_params": params, "rid": rid})
    assert status == 200, answer
    return answer


def ids_of(answer: dict) -> list[int]:
    return [token for _, token, _ in answer["meta_info"]["output_token_logprobs"]]


def test_text_is_encoded_and_ends_with_the_stop_id(fake_sglang):
    fake_sglang.say("hi")
    answer = generate(fake_sglang)
    assert ids_of(answer) == [*TOKENIZER.encode("hi"), END] == answer["output_ids"]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": END}
    assert answer["meta_info"]["prompt_tokens"] == 2
    assert answer["meta_info"]["completion_tokens"] == len(ids_of(answer))


def test_given_ids_are_said_as_they_are(fake_sglang):
    fake_sglang.say(ids=[1, 2, 3]).say(ids=[1, END])
    first, second = generate(fake_sglang), generate(fake_sglang)
    assert (ids_of(first), first["meta_info"]["finish_reason"]) == ([1, 2, 3], {"type": "stop"})
    assert (ids_of(second), second["meta_info"]["finish_reason"]) == ([1, END], {"type": "stop", "matched": END})


def test_logprobs_depend_on_token_and_place_alone(fake_sglang):
    fake_sglang.say(ids=[7, 7])
    logprobs = [value for value, _, _ in generate(fake_sglang, ids=[1, 2, 3])["meta_info"]["output_token_logprobs"]]
    assert logprobs == [pseudo_logprob(7, 3), pseudo_logprob(7, 4)]
    assert len({pseudo_logprob(token, place) for token in range(50) for place in range(50)}) > 2000
    assert all(-3 < pseudo_logprob(token, 9) < 0 for token in range(300))


def test_an_answer_may_end_by_length_or_by_another_stop(fake_sglang):
    fake_sglang.say("hi", finish="length").say("a\n\n", matched="\n\n").say("a", matched=279)
    length, string, token = (generate(fake_sglang) for _ in range(3))
    assert (length["meta_info"]["finish_reason"], ids_of(length)[-1]) == (
        {"type": "length", "length": 2},
        TOKENIZER.encode("i")[0],
    )
    assert (string["text"], string["meta_info"]["finish_reason"]) == ("a\n\n", {"type": "stop", "matched": "\n\n"})
    assert (ids_of(token)[-1], token["meta_info"]["finish_reason"]["matched"]) == (279, 279)


def test_the_requests_own_limits_end_an_answer_early(fake_sglang):
    fake_sglang.say("abcdef").say("one STOP two").say(ids=[1, 2, 3, END])
    cut = generate(fake_sglang, max_new_tokens=3)
    assert (cut["text"], cut["meta_info"]["finish_reason"]) == ("abc", {"type": "length", "length": 3})
    stopped = generate(fake_sglang, stop=["STOP"])
    assert (stopped["text"], stopped["meta_info"]["finish_reason"]["matched"]) == ("one STOP", "STOP")
    by_id = generate(fake_sglang, stop_token_ids=[2])
    assert (ids_of(by_id), by_id["meta_info"]["finish_reason"]["matched"]) == ([1, 2], 2)


def test_tool_calls_are_said_as_the_template_renders_them(fake_sglang):
    fake_sglang.call_tool("add", {"a": 1}).call_tools(("add", {"a": 1}), ("add", {"a": 2}), text="both")
    one, both = generate(fake_sglang)["text"], generate(fake_sglang)["text"]
    assert one == '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    assert both.startswith("both\n<tool_call>") and both.count("<tool_call>") == 2


def test_the_script_comes_first_then_the_responder_then_the_default():
    with FakeSGLang(default="default") as fake:
        fake.say("script").answer_with(lambda request: Answer("responder") if request.input_ids == (1,) else None)
        said = [generate(fake, ids)["text"].removesuffix("<|im_end|>") for ids in ([1], [1], [2])]
    assert said == ["script", "responder", "default"]


def test_a_request_nobody_scripted_is_named(fake_sglang):
    status, body = post(fake_sglang, "/generate", {"input_ids": TOKENIZER.encode("what now?"), "rid": "ro-1"})
    assert status == 400
    assert "no answer for request 0 (rid ro-1, " in body["error"]["message"]
    assert "what now?" in body["error"]["message"]
    assert [request.rid for request in fake_sglang.unanswered] == ["ro-1"]


def test_a_responder_that_raises_tells_the_one_who_asked(fake_sglang, caplog):
    fake_sglang.answer_with(lambda request: request.nonsense)
    status, body = post(fake_sglang, "/generate", {"input_ids": [1]})
    assert status == 400
    assert "AttributeError" in body["error"]["message"]


@pytest.mark.parametrize(
    "body", [{}, {"text": "hi"}, {"input_ids": "1"}, {"input_ids": [[1]]}, {"input_ids": [1], "stream": True}]
)
def test_what_it_does_not_speak_is_refused(fake_sglang, body):
    assert post(fake_sglang, "/generate", body)[0] == 400
    assert fake_sglang.requests == []


def test_everything_asked_and_said_is_on_record(fake_sglang):
    fake_sglang.say("hi")
    generate(fake_sglang, ids=[65, 66], rid="ro-1", temperature=0.5)
    request, sent = fake_sglang.requests[0], fake_sglang.answers[0]
    assert (request.index, request.input_ids, request.rid) == (0, (65, 66), "ro-1")
    assert request.sampling_params == {"temperature": 0.5}
    assert request.text == TOKENIZER.decode([65, 66])
    assert request.headers["content-type"] == "application/json"
    assert (sent.request, len(sent.ids), sent.finish, sent.matched) == (request, len(sent.logprobs), "stop", END)


def test_held_requests_wait_and_are_released_in_order(fake_sglang):
    fake_sglang.hold().answer_with(lambda request: request.rid)
    with ThreadPoolExecutor(3) as pool:
        calls = []
        for number in range(3):
            calls.append(pool.submit(generate, fake_sglang, rid=f"r{number}"))
            fake_sglang.wait_for_requests(number + 1)
        fake_sglang.release(1)
        assert calls[0].result()["text"] == "r0<|im_end|>"
        assert not calls[1].done()
        fake_sglang.release()
        assert [call.result()["meta_info"]["id"] for call in calls] == ["r0", "r1", "r2"]
    assert fake_sglang.in_flight == 0


def test_a_request_that_has_arrived_is_released_though_its_answer_is_still_sought(fake_sglang):
    helpers = []

    def respond(request):
        helpers.append(threading.Thread(target=fake_sglang.release, args=(1,)))
        helpers[0].start()
        helpers[0].join(0.1)  # it waits for this answer: one that did not would have released nothing by now
        return "ok"

    fake_sglang.hold().answer_with(respond)
    assert generate(fake_sglang)["text"] == "ok<|im_end|>"
    helpers[0].join()


@pytest.mark.parametrize(
    ("path", "body"),
    [("/abort_request", {"rid": "r"}), ("/abort_request", {"abort_all": True}), ("/pause_generation", {})],
)
def test_an_abort_returns_the_first_tokens_and_the_rest_is_said_later(fake_sglang, path, body):
    fake_sglang.hold().abort_partial(2).say("abc")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(generate, fake_sglang)
        fake_sglang.wait_for_requests(1)
        post(fake_sglang, path, body)
        part = call.result()
    assert (part["text"], part["meta_info"]["finish_reason"]) == ("ab", {"type": "abort"})
    post(fake_sglang, "/continue_generation", {})
    fake_sglang.release()
    rest = generate(fake_sglang, ids=[65, 66, *ids_of(part)])
    assert rest["text"] == "c<|im_end|>"
    whole = part["meta_info"]["output_token_logprobs"] + rest["meta_info"]["output_token_logprobs"]
    assert [value for value, _, _ in whole] == [pseudo_logprob(token, 2 + at) for at, (_, token, _) in enumerate(whole)]


def test_an_abort_of_another_request_changes_nothing(fake_sglang):
    fake_sglang.hold().say("ok")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(generate, fake_sglang, rid="r1")
        fake_sglang.wait_for_requests(1)
        post(fake_sglang, "/abort_request", {"rid": "r2"})
        post(fake_sglang, "/abort_request", {"rid": "1"})
        fake_sglang.release()
        assert call.result()["meta_info"]["finish_reason"]["type"] == "stop"


def test_an_abort_ends_all_requests_whose_ids_begin_with_its_own(fake_sglang):
    fake_sglang.hold().answer_with(lambda request: "ok")
    with ThreadPoolExecutor(3) as pool:
        calls = {rid: pool.submit(generate, fake_sglang, rid=rid) for rid in ("r1", "r12", "r2")}
        fake_sglang.wait_for_requests(3)
        post(fake_sglang, "/abort_request", {"rid": "r1"})
        ends = {rid: calls[rid].result()["meta_info"]["finish_reason"]["type"] for rid in ("r1", "r12")}
        fake_sglang.release()
        ends["r2"] = calls["r2"].result()["meta_info"]["finish_reason"]["type"]
    assert ends == {"r1": "abort", "r12": "abort", "r2": "stop"}


def test_requests_that_arrive_while_paused_wait_for_continue(fake_sglang):
    fake_sglang.say("ok")
    post(fake_sglang, "/pause_generation", {})
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(generate, fake_sglang)
        fake_sglang.wait_for_requests(1)
        assert get(fake_sglang, "/v1/loads")["loads"][0]["num_total_reqs"] == 1
        post(fake_sglang, "/continue_generation", {})
        assert call.result()["text"] == "ok<|im_end|>"
    assert [path for path, _ in fake_sglang.control] == ["/pause_generation", "/continue_generation"]


def test_scripted_faults_come_before_the_script(fake_sglang):
    fake_sglang.fail_next(503, "full", times=2).say("ok")
    assert post(fake_sglang, "/generate", {"input_ids": [1]}) == (503, {"error": {"message": "full"}})
    assert post(fake_sglang, "/generate", {"input_ids": [1]})[0] == 503
    assert generate(fake_sglang)["text"] == "ok<|im_end|>"
    assert len(fake_sglang.requests) == 3


def test_too_long_prompts_are_refused_as_sglang_refuses_them():
    with FakeSGLang(context_length=3) as fake:
        status, body = post(fake, "/generate", {"input_ids": [1, 2, 3, 4]})
    assert status == 400
    assert body["error"]["message"] == "The input (4 tokens) is longer than the model's context length (3 tokens)."


def test_it_answers_for_router_and_worker(fake_sglang):
    fake_sglang.weight_version = "7"
    assert get(fake_sglang, "/workers")["workers"][0]["url"] == fake_sglang.url
    assert get(fake_sglang, "/get_model_info")["weight_version"] == "7"
    assert get(fake_sglang, "/server_info")["context_length"] == 32768
    assert text(fake_sglang, "/health") == ""
    assert text(fake_sglang, "/flush_cache") == "Cache flushed.\n"


def test_meta_fields_of_an_answer_reach_the_wire(fake_sglang):
    fake_sglang.say("x", meta={"routed_experts": "AAAA", "cached_tokens": 1})
    meta = generate(fake_sglang)["meta_info"]
    assert (meta["routed_experts"], meta["cached_tokens"]) == ("AAAA", 1)


def test_an_answer_is_text_or_ids():
    with pytest.raises(ValueError, match="either text or ids"):
        Answer()
    with pytest.raises(ValueError, match="either text or ids"):
        Answer("x", ids=[1])
    with pytest.raises(ValueError, match="'abort'"):
        Answer("x", finish="abort")


def test_it_leaves_no_thread_behind():
    before = threading.active_count()
    fake = FakeSGLang().start()
    fake.stop()
    fake.stop()
    assert threading.active_count() == before


def test_without_a_start_the_address_is_refused_with_the_next_step():
    with pytest.raises(RuntimeError, match="start"):
        _ = FakeSGLang().url


def test_it_does_without_torch():
    program = (
        "import sys; from slime_agl.testing import FakeSGLang; FakeSGLang().start().stop()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_agl.chat.template.messages import Reply, ToolCall, normalise, reply_message, same_message, same_reply
from slime_agl.errors import TemplateError

CALL = ToolCall("call_1", "search", '{"query": "tides", "limit": 3}')


def echo(arguments: str, **more: object) -> dict:
    function = {"name": "search", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": function}], **more}


def test_a_message_is_reduced_to_what_a_template_reads() -> None:
    sent = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "audio": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    assert normalise([sent]) == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        }
    ]
    assert sent["content"] is None, "the input is the agent's and stays as it is"


def test_text_parts_become_one_string_and_developer_becomes_system() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert normalise([{"role": "developer", "content": parts}]) == [{"role": "system", "content": "one two"}]


@pytest.mark.parametrize("arguments", ["[1]", "not json", '{"a": ', "3"])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    assert normalise([echo(arguments)])[0]["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ==", "detail": "auto"}},
        {"type": "image_url", "image_url": "data:image/png;base64,QQ=="},
        {"type": "input_image", "image_url": "data:image/png;base64,QQ==", "detail": "high"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}},
        {"type": "image", "source": {"type": "url", "url": "data:image/png;base64,QQ=="}},
    ],
)
def test_an_image_of_any_shape_is_a_part_of_its_own(part: dict) -> None:
    (message,) = normalise([{"role": "user", "content": ["see", part]}])
    image = {"type": "image", "image": "data:image/png;base64,QQ=="}
    assert message["content"] == [{"type": "text", "text": "see"}, image]
    assert normalise([message]) == [message]
    assert same_message({"role": "user", "content": ["see", part]}, message)


@pytest.mark.parametrize(
    ("role", "part", "words"),
    [
        (
            "user",
            {"type": "image_url", "image_url": {}},
            "is an image at 'None'; give a data:, http:// or https:// URL",
        ),
        ("user", {"type": "image_url", "image_url": {"url": "ftp://x/y.png"}}, "is an image at 'ftp://x"),
        ("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}, "is an image at 'None'"),
        ("user", {"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}}, "asks for detail 'low'"),
        ("user", {"type": "input_audio", "input_audio": {}}, "has type 'input_audio'; send text and images only"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_its_place(role: str, part: dict, words: str) -> None:
    with pytest.raises(TemplateError, match=r"messages\[1\]\.content\[1\] " + words):
        normalise(
            [{"role": "user", "content": "x"}, {"role": role, "content": [{"type": "text", "text": "see"}, part]}]
        )


def test_an_image_of_the_assistant_is_refused() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://x"}}
    with pytest.raises(TemplateError, match=r"messages\[0\] has role assistant and contains an image"):
        normalise([{"role": "assistant", "content": [part]}])


def test_an_unknown_role_is_refused_with_its_place() -> None:
    with pytest.raises(TemplateError, match=r"messages\[0\] has role 'critic'"):
        normalise([{"role": "critic", "content": "x"}])


def test_a_call_that_is_no_function_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"messages\[0\]\.tool_calls\[0\] has type 'custom'"):
        normalise([{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {}}]}])


@pytest.mark.parametrize(
    "arguments", ['{"limit":3,"query":"tides"}', '{"query": "tides", "limit": 3.0}', {"limit": 3, "query": "tides"}]
)
def test_calls_are_recognised_whatever_their_spelling(arguments: str) -> None:
    assert same_reply(Reply("", "", (CALL,)), echo(arguments, content=None))


@pytest.mark.parametrize("arguments", ['{"query": "tides"}', '{"query": "tides", "limit": true}', "{"])
def test_other_arguments_are_another_reply(arguments: str) -> None:
    one = ToolCall("c", "search", '{"query": "tides", "limit": 1}')
    assert not same_reply(Reply("", "", (one,)), echo(arguments))


def test_true_is_not_one() -> None:
    assert not same_reply(Reply("", "", (ToolCall("c", "search", '{"a": 1}'),)), echo('{"a": true}'))


@pytest.mark.parametrize(
    "message",
    [
        {"content": "It is seven."},
        {"content": "  It is\nseven. "},
        {"content": "It is seven.", "reasoning_content": "clock"},
        {"content": "<think>\nclock\n</think>\n\nIt is seven."},
        {"content": "clock\n</think>\n\nIt is seven."},
        {"content": [{"type": "text", "text": "It is seven."}]},
    ],
)
def test_reasoning_may_be_echoed_in_any_way(message: dict) -> None:
    assert same_reply(Reply("It is seven.", "clock", ()), {"role": "assistant", **message})


def test_a_stray_end_of_reasoning_in_a_reply_hides_no_echo() -> None:
    echoed = {"role": "assistant", "content": "<think>\nclock\n</think>\n\nIt is seven.</think>"}
    assert same_reply(Reply("It is seven.</think>", "clock", ()), echoed)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "It is eight."},
        {"role": "user", "content": "It is seven."},
        {"role": "assistant", "content": None},
        echo("{}", content="It is seven."),
    ],
)
def test_an_edited_reply_is_not_ours(message: dict) -> None:
    assert not same_reply(Reply("It is seven.", "clock", ()), message)


def test_an_ill_formed_reply_is_recognised_by_its_raw_text() -> None:
    raw = '<tool_call>{"name": "f"'
    assert same_reply(Reply(raw, "", (), ill_formed=True), {"role": "assistant", "content": raw})


def test_an_ill_formed_reply_carries_no_call() -> None:
    with pytest.raises(ValueError, match="has 1 tool calls"):
        Reply("x", "", (CALL,), ill_formed=True)


def test_messages_agree_when_the_template_sees_the_same() -> None:
    assert same_message({"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": "a"})
    assert same_message(
        {"role": "tool", "content": "1", "tool_call_id": "c", "extra": 1},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    )
    assert not same_message({"role": "user", "content": "a"}, {"role": "user", "content": "a "})
    assert not same_message(
        {"role": "tool", "content": "1", "tool_call_id": "c"}, {"role": "tool", "content": "1", "tool_call_id": "d"}
    )


def test_a_client_that_drops_the_text_beside_calls_says_the_same_as_before() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    told = {"role": "assistant", "content": "Never said that.", "reasoning_content": "hm", "tool_calls": calls}
    assert same_message(told, {"role": "assistant", "content": None, "tool_calls": calls})
    assert not same_message(told, {"role": "assistant", "content": "", "tool_calls": calls})
    assert not same_message({"role": "assistant", "content": None, "tool_calls": calls}, told)
    assert not same_message({"role": "assistant", "content": "Never."}, {"role": "assistant", "content": None})


def test_equal_messages_agree_even_when_no_template_takes_them() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    assert same_message(image, dict(image))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
replies = st.builds(
    Reply,
    text=st.text(),
    reasoning=st.text(),
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            id=st.text(max_size=5),
            name=st.text(min_size=1, max_size=5),
            arguments=st.dictionaries(st.text(), json_values, max_size=3).map(json.dumps),
        ),
        max_size=2,
    ).map(tuple),
)


@given(replies)
def test_a_reply_recognises_its_own_message_raw_and_normalised(reply: Reply) -> None:
    message = reply_message(reply)
    assert same_reply(reply, message)
    assert normalise([message]) == [message]
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in reply.tool_calls
    ]
    assert same_reply(reply, {"role": "assistant", "content": reply.text or None, "tool_calls": calls})


def test_an_echo_without_the_text_beside_its_calls_is_the_same_turn() -> None:
    reply = Reply("Let me see.", "", (ToolCall("c1", "add", '{"a": 1}'),))
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    echo = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert same_reply(reply, echo)
    assert same_reply(reply, {name: value for name, value in echo.items() if name != "content"})
    assert not same_reply(reply, echo | {"content": "Other words."})
    other = call | {"function": {"name": "add", "arguments": '{"a": 2}'}}
    assert not same_reply(reply, echo | {"tool_calls": [other]})
    assert not same_reply(Reply("Let me see.", "", ()), {"role": "assistant", "content": None})

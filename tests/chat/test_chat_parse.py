from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_agl.chat.parse.builtin import IllFormed, read_calls
from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.template.messages import Reply, ToolCall, split_think
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import ConfigError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book",
            "parameters": {
                "type": "object",
                "properties": {
                    "seats": {"type": "integer"},
                    "name": {"type": "string"},
                    "extras": {"type": "array"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
            },
        },
    }
]
HERMES = '<tool_call>\n{"name": "book", "arguments": {"seats": 2}}\n</tool_call>'
BOOK = ToolCall("call_0", "book", '{"seats": 2}')

Parse = Callable[..., Reply]


@pytest.fixture(scope="module")
def parse(chatml: Renderer) -> Parse:
    return parse_with(chatml, ReplyParser(chatml))


def parse_with(renderer: Renderer, parser: ReplyParser) -> Parse:
    def run(text: str, finish: str = "stop", tools: list[dict] | None = TOOLS, **options: Any) -> Reply:
        mint = "call_{}".format
        return parser.parse(renderer.encode(text), finish=finish, tools=tools, mint=mint, **options)

    return run


def test_the_stop_token_is_not_part_of_the_text(parse: Parse) -> None:
    assert parse("It is seven.<|im_end|>") == Reply("It is seven.", "", ())


def test_a_turn_that_sampled_nothing_says_nothing(parse: Parse) -> None:
    assert parse("", finish="abort") == Reply("", "", ())


def test_a_plain_text_is_left_as_it_is(parse: Parse) -> None:
    assert parse("  two\n\nlines \n").text == "  two\n\nlines \n"


def test_a_json_call_is_made(parse: Parse) -> None:
    assert parse(f"Right away.\n{HERMES}<|im_end|>") == Reply("Right away.", "", (BOOK,))


def test_parallel_calls_are_minted_in_order(parse: Parse) -> None:
    calls = parse(f"{HERMES}\n{HERMES}<|im_end|>").tool_calls
    assert [call.id for call in calls] == ["call_0", "call_1"]


def test_an_xml_call_is_read_by_the_schema_of_its_tool(parse: Parse) -> None:
    said = (
        "<tool_call>\n<function=book>\n<parameter=seats>\n2\n</parameter>\n<parameter=name>\n7\n</parameter>\n"
        "<parameter=extras>\n[1, {}]\n</parameter>\n<parameter=note>\nnull\n</parameter>\n"
        "<parameter=free>\n8\n</parameter>\n</function>\n</tool_call>"
    )
    (call,) = parse(said).tool_calls
    assert json.loads(call.arguments) == {"seats": 2, "name": "7", "extras": [1, {}], "note": None, "free": "8"}


def test_an_xml_call_needs_no_outer_tags_and_keeps_lines(parse: Parse) -> None:
    (call,) = parse("<function=book><parameter=name>\na\n  b\n</parameter></function>").tool_calls
    assert json.loads(call.arguments) == {"name": "a\n  b"}


def test_a_value_that_does_not_fit_its_schema_is_kept_as_text(parse: Parse) -> None:
    (call,) = parse("<function=book><parameter=seats>two</parameter></function>").tool_calls
    assert json.loads(call.arguments) == {"seats": "two"}


def test_a_call_of_an_unknown_tool_is_the_agents_to_handle(parse: Parse) -> None:
    (call,) = parse('<tool_call>{"name": "fly", "arguments": {}}</tool_call>').tool_calls
    assert (call.name, call.arguments) == ("fly", "{}")


def test_markers_within_an_argument_are_text(parse: Parse) -> None:
    arguments = {"name": "write </tool_call> and <tool_call> and <function=x>"}
    said = "<tool_call>" + json.dumps({"name": "book", "arguments": arguments}) + "</tool_call>"
    (call,) = parse(said).tool_calls
    assert json.loads(call.arguments) == arguments


def test_without_tools_call_syntax_is_text(parse: Parse) -> None:
    for tools in (None, []):
        assert parse(HERMES, tools=tools) == Reply(HERMES, "", ())


BROKEN = {
    "cut in the arguments": '<tool_call>{"name": "book", "arguments": {"seats": 2',
    "closed JSON without closing tag": '<tool_call>{"name": "book", "arguments": {"seats": 2}}',
    "arguments are a list": '<tool_call>{"name": "book", "arguments": [2]}</tool_call>',
    "arguments are a number": '<tool_call>{"name": "book", "arguments": 2}</tool_call>',
    "arguments are text that is no object": '<tool_call>{"name": "book", "arguments": "two"}</tool_call>',
    "no name": '<tool_call>{"arguments": {}}</tool_call>',
    "a name that is no text": '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    "not JSON": "<tool_call>book two seats</tool_call>",
    "more than one object": '<tool_call>{"name": "book"} {"name": "book"}</tool_call>',
    "not a number": '<tool_call>{"name": "book", "arguments": {"seats": NaN}}</tool_call>',
    "half a character": '<tool_call>{"name": "book", "arguments": {"name": "\\ud800"}}</tool_call>',
    "too deep": '<tool_call>{"name": "book", "arguments": ' + "[" * 100_000 + "</tool_call>",
    "only a closing tag": "sure</tool_call>",
    "one good call and one cut": HERMES + '<tool_call>{"name": "bo',
    "xml cut in a parameter": "<tool_call><function=book><parameter=seats>2",
    "xml without its outer end": "<tool_call><function=book></function>",
    "xml with text between parameters": "<function=book>hm<parameter=seats>2</parameter></function>",
}


@pytest.mark.parametrize("finish", ["stop", "length", "abort"])
@pytest.mark.parametrize("said", BROKEN.values(), ids=BROKEN.keys())
def test_broken_call_syntax_never_becomes_a_call(parse: Parse, said: str, finish: str) -> None:
    assert parse(said, finish) == Reply(said, "", (), ill_formed=True)


def test_a_cut_turn_keeps_a_call_that_was_closed(parse: Parse) -> None:
    assert parse(HERMES + "\nand then", "length") == Reply("and then", "", (BOOK,))


@pytest.mark.parametrize(
    ("said", "opened", "reply"),
    [
        ("<think>\nhm\n</think>\n\nYes.<|im_end|>", False, Reply("Yes.", "hm", ())),
        ("hm\n</think>\n\nYes.<|im_end|>", True, Reply("Yes.", "hm", ())),
        ("<think>hm</think>Yes.", True, Reply("Yes.", "hm", ())),
        ("\n<think>\n\n</think>\n\nYes.", False, Reply("Yes.", "", ())),
        ("Yes. <think> is a tag.", False, Reply("Yes. <think> is a tag.", "", ())),
        ("hm", False, Reply("hm", "", ())),
        ("hm\n</think>\n\n" + HERMES, True, Reply("", "hm", (BOOK,))),
    ],
)
def test_reasoning_is_split_off(parse: Parse, said: str, opened: bool, reply: Reply) -> None:
    assert parse(said, prompt_opens_think=opened) == reply


def test_reasoning_that_was_cut_is_all_reasoning(parse: Parse) -> None:
    assert parse("first I", "length", prompt_opens_think=True) == Reply("", "first I", ())


def test_a_call_within_closed_reasoning_is_a_thought(parse: Parse) -> None:
    assert parse(f"<think>maybe {HERMES}</think>No.") == Reply("No.", f"maybe {HERMES}", ())


def test_a_call_ends_reasoning_that_the_model_forgot_to_close(parse: Parse) -> None:
    assert parse(f"<think>\nnow\n{HERMES}<|im_end|>") == Reply("", "now", (BOOK,))


def test_a_cut_turn_makes_no_call_out_of_open_reasoning(parse: Parse) -> None:
    assert parse(f"<think>now {HERMES}", "length").tool_calls == ()


@settings(max_examples=80, deadline=None)
@given(
    said=st.lists(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "<function=book>",
                "</function>",
                "<parameter=a>",
                "</parameter>",
                "<think>",
                "</think>",
                '{"name": "book", ',
                '"arguments": {}}',
                '"arguments": ',
                "{",
                "}",
                "x",
                "\n",
                "<|im_end|>",
            ]
        )
    ).map("".join),
    finish=st.sampled_from(["stop", "length", "abort"]),
    opened=st.booleans(),
)
def test_nothing_a_model_writes_breaks_the_parser(chatml: Renderer, said: str, finish: str, opened: bool) -> None:
    reply = parse_with(chatml, ReplyParser(chatml))(said, finish, prompt_opens_think=opened)
    for call in reply.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_ids_can_be_parsed(chatml: Renderer, ids: bytes) -> None:
    ReplyParser(chatml).parse(list(ids), finish="length", tools=TOOLS, mint=str)


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.none(), max_size=4))
def test_arguments_survive(arguments: dict) -> None:
    text = "<tool_call>" + json.dumps({"name": "book", "arguments": arguments}) + "</tool_call>"
    ((_, written),) = read_calls(text, TOOLS).calls
    assert json.loads(written) == arguments


def test_a_text_that_opens_nothing_is_not_split() -> None:
    assert split_think("no thought") is None


# sglang's parsers: the shapes we call, played by stand-ins.


class FakeDetector:
    bot_token, eot_token = "<tool_call>", "</tool_call>"
    think_start_token, think_end_token = "<think>", "</think>"


class FakeCalls:
    """Reads JSON calls of known tools, and drops the others as sglang does."""

    ToolCallParserEnum = dict.fromkeys(("qwen25", "broken", "odd"), FakeDetector)
    odd: list[SimpleNamespace] = []

    def __init__(self, tools: list[SimpleNamespace], tool_call_parser: str) -> None:
        self.detector, self.tools, self.name = FakeDetector(), tools, tool_call_parser

    def has_tool_call(self, text: str) -> bool:
        return "<tool_call>" in text

    def parse_non_stream(self, text: str) -> tuple[str, list[SimpleNamespace]]:
        if self.name == "broken":
            raise KeyError("detector state")
        if self.name == "odd":
            return "", self.odd
        known = {tool.function["name"] for tool in self.tools}
        try:
            calls = read_calls(text, ()).calls
        except IllFormed:
            calls = ()
        found = [SimpleNamespace(name=n, parameters=a) for n, a in calls if n in known]
        return text.partition("<tool_call>")[0], found


class FakeReasoning:
    """Takes all for reasoning that does not say otherwise, as the DeepSeek-R1 detector does."""

    DetectorMap = {"deepseek-r1": FakeDetector}

    def __init__(self, model_type: str, stream_reasoning: bool, force_reasoning: bool | None) -> None:
        self.detector = FakeDetector()

    def parse_non_stream(self, text: str) -> tuple[str, str]:
        reasoning, _, rest = text.removeprefix("<think>").partition("</think>")
        return reasoning, rest


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str, **content: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)

    module("sglang")
    module("sglang.srt")
    module("sglang.srt.entrypoints")
    module("sglang.srt.entrypoints.openai")
    module("sglang.srt.entrypoints.openai.protocol", Tool=SimpleNamespace)
    module(
        "sglang.srt.environ", envs=SimpleNamespace(SGLANG_FORWARD_UNKNOWN_TOOLS=SimpleNamespace(override=nullcontext))
    )
    module("sglang.srt.function_call")
    module("sglang.srt.function_call.function_call_parser", FunctionCallParser=FakeCalls)
    module("sglang.srt.parser")
    module("sglang.srt.parser.reasoning_parser", ReasoningParser=FakeReasoning)


@pytest.mark.usefixtures("sglang")
def test_sglangs_parsers_are_used_when_named(chatml: Renderer) -> None:
    parser = ReplyParser(chatml, tool_call_parser="qwen25", reasoning_parser="deepseek-r1")
    parse = parse_with(chatml, parser)
    assert parse(f"<think>hm</think>\n\nOn it. {HERMES}<|im_end|>") == Reply("On it.", "hm", (BOOK,))
    assert parse("Yes.<|im_end|>") == Reply("Yes.", "", ()), "a detector that forces reasoning is not asked"
    assert parse("first", "length", prompt_opens_think=True) == Reply("", "first", ())


@pytest.mark.usefixtures("sglang")
def test_a_call_that_sglang_drops_reaches_the_agent(chatml: Renderer) -> None:
    parse = parse_with(chatml, ReplyParser(chatml, tool_call_parser="qwen25"))
    fly = '<tool_call>{"name": "fly", "arguments": {}}</tool_call>'
    assert [call.name for call in parse(fly).tool_calls] == ["fly"]
    assert [call.name for call in parse(HERMES + fly).tool_calls] == ["book", "fly"]


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_what_sglang_cannot_read_is_ill_formed(chatml: Renderer, finish: str) -> None:
    parse = parse_with(chatml, ReplyParser(chatml, tool_call_parser="qwen25"))
    said = HERMES + '<tool_call>{"name": "bo'
    assert parse(said, finish) == Reply(said, "", (), ill_formed=True)


@pytest.mark.usefixtures("sglang")
def test_a_parser_that_raises_leaves_flagged_text(chatml: Renderer, caplog: pytest.LogCaptureFixture) -> None:
    parse = parse_with(chatml, ReplyParser(chatml, tool_call_parser="broken"))
    assert parse(HERMES) == Reply(HERMES, "", (), ill_formed=True)
    assert parse(f"<think>hm</think>{HERMES}") == Reply(HERMES, "hm", (), ill_formed=True), "reasoning stays apart"
    assert "replying with its text" in caplog.text


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize("name", [{"name": "book"}, ["book"], None, 5, True, "", " \n", b"book", "\ud800"])
def test_a_name_that_is_not_text_makes_no_call(chatml: Renderer, monkeypatch: pytest.MonkeyPatch, name: object) -> None:
    good = SimpleNamespace(name="book", parameters="{}", tool_index=0)
    monkeypatch.setattr(FakeCalls, "odd", [good, SimpleNamespace(name=name, parameters="{}", tool_index=-1)])
    parse = parse_with(chatml, ReplyParser(chatml, tool_call_parser="odd"))
    said = '<tool_call>{"name": {}, "arguments": {}}</tool_call>'
    assert parse(said) == Reply(said, "", (), ill_formed=True), "of several calls none counts when one is broken"


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize("name", ['\n{"name": "book", "arguments": {}}\n', "book it", "<arg_key>a", "[book]"])
def test_a_block_of_another_syntax_is_no_name_unless_a_tool_is_called_so(
    chatml: Renderer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(FakeCalls, "odd", [SimpleNamespace(name=name, parameters="{}", tool_index=-1)])
    parser = ReplyParser(chatml, tool_call_parser="odd")
    said = "<tool_call>{}</tool_call>"
    assert parse_with(chatml, parser)(said) == Reply(said, "", (), ill_formed=True)
    tools = [{"type": "function", "function": {"name": name}}]
    (call,) = parser.parse(chatml.encode(said), finish="stop", tools=tools, mint=lambda number: "c").tool_calls
    assert call.name == name


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize("arguments", ["[1]", '"{}"', "5", "null", "{", '{"a": NaN}', 5, ["a"], True, {"a": {1}}])
def test_arguments_that_are_no_object_make_no_call(
    chatml: Renderer, monkeypatch: pytest.MonkeyPatch, arguments: object
) -> None:
    monkeypatch.setattr(FakeCalls, "odd", [SimpleNamespace(name="book", parameters=arguments, tool_index=99)])
    parse = parse_with(chatml, ReplyParser(chatml, tool_call_parser="odd"))
    said = '<tool_call>{"name": {}, "arguments": {}}</tool_call>'
    assert parse(said) == Reply(said, "", (), ill_formed=True)


@pytest.mark.parametrize("name", [{"name": "book"}, ["book"], None, 5, "", " "])
def test_the_built_in_parser_makes_no_call_of_such_names_either(chatml: Renderer, name: object) -> None:
    said = f"<tool_call>{json.dumps({'name': name, 'arguments': {}})}</tool_call>"
    assert parse_with(chatml, ReplyParser(chatml))(said) == Reply(said, "", (), ill_formed=True)


def test_a_harmony_call_of_no_tool_is_flagged_text(chatml: Renderer) -> None:
    said = "<|channel|>commentary to=functions.<|message|>{}<|call|>"
    reply = parse_with(chatml, ReplyParser(chatml, tool_call_parser="gpt-oss"))(said)
    assert reply.ill_formed and reply.tool_calls == ()


@pytest.mark.usefixtures("sglang")
def test_an_unknown_parser_is_refused_with_the_closest_name(chatml: Renderer) -> None:
    with pytest.raises(ConfigError, match=r"--sglang-tool-call-parser 'qwen2' is not one of .* mean 'qwen25'\?"):
        ReplyParser(chatml, tool_call_parser="qwen2")


def test_without_sglang_the_built_in_parsers_stand_in(
    chatml: Renderer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    parse = parse_with(chatml, ReplyParser(chatml, tool_call_parser="qwen25", reasoning_parser="qwen3"))
    assert parse(f"<think>hm</think>{HERMES}") == Reply("", "hm", (BOOK,))
    assert "using the built-in one" in caplog.text

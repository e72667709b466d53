"""What an attempt keeps: each thing once, and found again exactly."""

from __future__ import annotations

from array import array
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slime_agl.chat.template.messages import Reply, ToolCall, reply_message
from slime_agl.chat.template.tools import Tools
from slime_agl.engine.id_text import IdText
from slime_agl.gateway.sessions.session import TEXTS_KEPT, IdTexts
from slime_agl.gateway.turn.conversation import Context, Conversation, Node
from slime_agl.gateway.turn.shared import Shared
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.turn import STOP, Sampled, Turn

SYSTEM, ASK = {"role": "system", "content": "be brief"}, {"role": "user", "content": "tides?"}
CALL = ToolCall("c00000000", "search", '{"query": "tides", "n": 1}')
CALLED, SAID = Reply("Let me look.", "why not", (CALL,)), Reply("High at six.", "", ())
RESULT = {"role": "tool", "tool_call_id": CALL.id, "content": "six"}


def echoed(reply: Reply) -> dict[str, Any]:
    calls = [
        {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in reply.tool_calls
    ]
    return {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}


def written(text: IdText) -> tuple[bytes, int]:
    assert text.size == sum(map(len, text.pieces))
    return b"".join(text.pieces), text.length


def decimals(ids: array) -> tuple[bytes, int]:
    return ",".join(map(str, ids)).encode(), len(ids)


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(0, 200), max_size=60), at=st.integers(0, 60))
def test_a_text_that_grows_is_the_text_of_all_its_ids_in_few_pieces(lengths: list[int], at: int) -> None:
    ids, text, earlier = array("i"), IdText(), []
    for length in lengths:
        added = array("i", range(len(ids), len(ids) + length))
        ids, text = ids + added, text.extended(added)
        earlier.append((ids, text))
        sizes = [len(piece) for piece in text.pieces]
        assert all(one >= 2 * next_one for one, next_one in zip(sizes, sizes[1:], strict=False))
    for ids, text in earlier:
        assert written(text) == decimals(ids)
    if earlier:
        size, length = len(decimals(earlier[at % len(earlier)][0])[0]), len(earlier[at % len(earlier)][0])
        assert written(text.cut(size, length)) == decimals(earlier[at % len(earlier)][0])


@settings(max_examples=150, deadline=None)
@given(
    tree=st.lists(st.tuples(st.integers(-1, 30), st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=30),
    asked=st.lists(st.integers(0, 30), max_size=20),
)
def test_a_held_prompt_is_the_ids_of_its_turn_wherever_the_tree_branches(
    tree: list[tuple[int, int, int]], asked: list[int]
) -> None:
    ledger = Ledger("ro", "at")
    held = IdTexts(ledger)
    for index, (parent, new, sampled) in enumerate(tree):
        above = parent if 0 <= parent < index else None
        ids, output = array("i", range(10 * index, 10 * index + new)), array("i", range(sampled))
        part = Sampled(ids=output, logprobs=array("d", [-0.5] * sampled), finish=STOP)
        before = held.of(above)
        ledger.commit(Turn(index=index, parent=above, new_ids=ids, parts=(part,), turn_id=f"turn-{index}"))
        held.keep(index, before.extended(ids).extended(output))
        for turn in {index, *(number for number in asked if number <= index)}:
            assert written(held.of(turn)) == decimals(ledger.ids(turn))
    assert len(held._texts) <= TEXTS_KEPT


def test_a_chain_of_turns_holds_one_text() -> None:
    ledger = Ledger("ro", "at")
    held = IdTexts(ledger)
    for index in range(50):
        ledger.commit(
            Turn(
                index=index,
                parent=index - 1 if index else None,
                new_ids=array("i", [index]),
                parts=(),
                turn_id=f"turn-{index}",
            )
        )
        held.keep(index, IdText().extended(ledger.ids(index)))
    assert list(held._texts) == [49]
    assert written(held.of(7)) == (b"0,1,2,3,4,5,6,7", 8)


def conversation() -> tuple[Conversation, Node, Node]:
    held = Conversation()
    first = Node(index=0, parent=None, added=(SYSTEM, ASK), reply=CALLED, tools=None, kwargs={}, last_id=7)
    held.add(first, first.added)
    second = Node(index=1, parent=first, added=(RESULT,), reply=SAID, tools=None, kwargs={}, last_id=7)
    held.add(second, second.prompt_messages())
    return held, first, second


def test_the_context_of_a_turn_is_what_it_was_shown_with_reasoning() -> None:
    _, _, second = conversation()
    context = Context(second)
    assert list(context) == [SYSTEM, ASK, reply_message(CALLED), RESULT]
    assert len(context) == 4 and context[0] == SYSTEM and context[-1] == RESULT and context[1:2] == [ASK]


def test_a_turn_says_what_it_was_shown_in_the_agents_words() -> None:
    held, _, second = conversation()
    assert second.prompt_messages() == [SYSTEM, ASK, {**echoed(CALLED), "reasoning_content": "why not"}, RESULT]
    sloppy = {"role": "assistant", "content": " Let me  look.", "tool_calls": echoed(CALLED)["tool_calls"]}
    assert held.match([SYSTEM, ASK, sloppy, RESULT, echoed(SAID), ASK], None, {}).node is second
    assert second.prompt_messages()[2] == sloppy


def test_an_echo_with_another_call_or_text_is_another_turn() -> None:
    held, first, second = conversation()
    plain, ask = echoed(CALLED), {"role": "user", "content": "and now?"}
    assert held.match([SYSTEM, ASK, plain, RESULT], None, {}).node is first
    for change in (
        {"content": "Let me see."},
        {"tool_calls": []},
        {"tool_calls": [{**plain["tool_calls"][0], "function": {"name": "read", "arguments": CALL.arguments}}]},
        {"tool_calls": [{**plain["tool_calls"][0], "function": {"name": "search", "arguments": "{}"}}]},
    ):
        assert held.match([SYSTEM, ASK, {**plain, **change}, RESULT], None, {}).node is None
    reordered = {"name": "search", "arguments": '{"n":1,"query":"tides"}'}
    other = {**plain, "tool_calls": [{**plain["tool_calls"][0], "function": reordered}]}
    assert held.match([SYSTEM, ASK, other, RESULT, echoed(SAID), ask], None, {}).node is second


def test_equal_tools_and_system_messages_are_one_object() -> None:
    shared = Shared()
    held = shared.tools(Tools([{"type": "function", "function": {"name": "search"}}]))
    assert shared.tools(Tools([{"type": "function", "function": {"name": "search"}}])) is held
    assert shared.tools(Tools([{"type": "function", "function": {"name": "read"}}])) is not held
    assert shared.tools(None) is None
    assert shared.message({"role": "system", "content": "be brief"}) is shared.message(dict(SYSTEM))
    assert shared.message(ASK) is ASK


async def test_turns_of_one_shape_are_rendered_only_once(bench: Any, fake_sglang: Any) -> None:
    client = await bench.open()
    fake_sglang.say("one").say("two").say("three").say("four")
    messages: list[dict[str, Any]] = [SYSTEM, ASK]
    for _ in range(4):
        answer = await client.chat.completions.create(model="m", messages=messages)
        messages += [answer.choices[0].message.model_dump(exclude_none=True), ASK]
    sealed = await bench.seal()
    assert sealed.messages == messages[:-2]
    assert sealed.counters["rendered_deltas"] == 0
    assert len(sealed.ledger.path(3)) == 4
    names = [turn.turn_id for turn in sealed.ledger.turns]
    assert len(set(names)) == 4 and all(name.startswith("chatcmpl-") for name in names)

"""`agl.train`: only chosen conversations train; the others are answered, continued and counted."""

from __future__ import annotations

from typing import Any

import pytest

from slime_agl.config.train import TrainConfig
from slime_agl.errors import ConfigError
from slime_agl.gateway.request import TurnRequest
from slime_agl.gateway.turn.selection import Selection

TOOLS: list[Any] = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
WORK = [{"role": "system", "content": "You write code."}, {"role": "user", "content": "Fix it."}]
TITLE = [{"role": "system", "content": "Make a title."}, {"role": "user", "content": "Fix it."}]


async def ask(client: Any, messages: list[Any], model: str = "m", tools: list[Any] | None = None) -> list[Any]:
    """Return the conversation with its answer."""
    more = {"tools": tools} if tools else {}
    answer = await client.chat.completions.create(model=model, messages=messages, **more)
    return [*messages, answer.choices[0].message.model_dump(exclude_none=True)]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (TrainConfig(system="write (code|tests)"), "skipped_system"),
        (TrainConfig(except_system="title"), "skipped_system"),
        (TrainConfig(model="m"), "skipped_model"),
        (TrainConfig(except_model="small.*"), "skipped_model"),
        (TrainConfig(tools=".+"), "skipped_tools"),
        (TrainConfig(tools="bash|edit", system="code"), "skipped_system"),
    ],
)
async def test_side_calls_do_not_train_nor_fork_what_does(make_bench, script, fake_sglang, rules, reason):
    script("A title", "Done.", "Another title", "Really.", "It is fine")
    bench = make_bench(train=rules)
    client = await bench.open()
    await ask(client, TITLE, "small-1")
    talk = await ask(client, WORK, tools=TOOLS)
    again = await ask(client, TITLE, "small-1")
    talk = await ask(client, [*talk, {"role": "user", "content": "Sure?"}], tools=TOOLS)
    await ask(client, [*again, {"role": "user", "content": "Shorter."}], "small-1")
    proof = await bench.prove(fake_sglang)
    ledger = proof.left.ledger
    assert (proof.segments, proof.turns, proof.forks) == (1, 5, [])
    assert [turn.untrained for turn in ledger.turns] == [reason, "", reason, "", reason]
    assert ledger.turns[3].parent == 1 and ledger.turns[4].parent == 2, "what does not train is continued too"
    assert proof.left.final_text == "Really." and proof.left.messages[-1]["content"] == "Sure?"


async def test_a_judge_that_continues_the_conversation_is_no_branch_of_it(make_bench, script, fake_sglang):
    script("Done.", "Good work.", "More.")
    bench = make_bench(train=TrainConfig(except_model="judge"))
    client = await bench.open()
    talk = await ask(client, WORK)
    await ask(client, [*talk, {"role": "user", "content": "Grade it."}], "judge")
    await ask(client, [*talk, {"role": "user", "content": "Go on."}])
    proof = await bench.prove(fake_sglang)
    assert (proof.segments, proof.forks) == (1, []) and [t.parent for t in proof.left.ledger.turns] == [None, 0, 0]


async def test_a_turn_that_does_not_train_may_stand_within_a_segment(make_bench, script, fake_sglang):
    script("One.", "Two.", "Three.")
    bench = make_bench(train=TrainConfig(except_model="other"))
    client = await bench.open()
    talk = WORK
    for model in ("m", "other", "m"):
        talk = [*await ask(client, talk, model), {"role": "user", "content": "Next."}]
    proof = await bench.prove(fake_sglang)
    ledger = proof.left.ledger
    assert (proof.segments, proof.turns) == (1, 3) and ledger.turns[1].untrained == "skipped_model"
    assert proof.trained == proof.sampled - ledger.turns[1].output_length


async def test_ids_that_continue_a_turn_that_does_not_train_extend_it(make_bench, script, fake_sglang):
    script("One.", "Two.")
    bench = make_bench(train=TrainConfig(model="m"))
    client = await bench.open()
    first = await client.completions.create(model="other", prompt=[5, 6, 7], extra_body={"return_token_ids": True})
    ids = [5, 6, 7, *first.choices[0].model_dump()["token_ids"], 8]
    await client.completions.create(model="m", prompt=ids)
    proof = await bench.prove(fake_sglang)
    assert proof.left.ledger.turns[1].parent == 0 and proof.segments == 1


def request(**given: Any) -> TurnRequest:
    return TurnRequest(**{"messages": WORK, "model": "m", **given})


def test_a_system_prompt_is_the_leading_system_messages_in_any_shape() -> None:
    selection = Selection.of(TrainConfig(system=r"^One\.\nTwo\.$"))
    assert selection is not None
    parts = [{"type": "text", "text": "One."}]
    told = [{"role": "system", "content": parts}, {"role": "developer", "content": "Two."}, WORK[1]]
    assert selection.skipped(request(messages=told)) == ""
    assert selection.skipped(request(messages=[*told, {"role": "system", "content": "Three."}])) == ""
    assert selection.skipped(request(messages=told[1:])) == "skipped_system"
    assert selection.skipped(request(prompt="One.\nTwo.")) == "" and selection.skipped(request(prompt=(1, 2)))


def test_without_rules_there_is_no_selection_and_a_bad_rule_is_named() -> None:
    assert Selection.of(TrainConfig()) is None
    with pytest.raises(ConfigError, match=r"agl\.train\.except_tools is '\('"):
        TrainConfig(except_tools="(")

"""Credentials are removed from a record, nothing else is, and the record says where they were."""

from __future__ import annotations

import datetime
import enum
import string
from array import array
from collections import Counter
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from slime_agl.record.blot import BLOTTED_ID, MARK, blot, blot_ledger, blot_text, needed_by_a_rerun
from slime_agl.record.credentials import is_named, is_value
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.replay import TopP
from slime_agl.trace.turn import Media, Sampled, Turn

ALNUM = (string.ascii_letters + string.digits) * 4


def some(count: int, alphabet: str = ALNUM) -> str:
    """Deterministic letters and digits, no two neighbours alike."""
    return "".join(alphabet[(7 * at + 3) % len(alphabet)] for at in range(count))


CREDENTIALS = {
    "gateway": "sk-agl-" + some(32),
    "openai": "sk-" + some(20) + "T3BlbkFJ" + some(20),
    "openai project": "sk-proj-" + some(74) + "T3BlbkFJ" + some(74),
    "anthropic": "sk-ant-api03-" + some(93) + "AA",
    "openrouter": "sk-or-v1-" + some(64, "0123456789abcdef"),
    "deepseek": "sk-" + some(32, "0123456789abcdef"),
    "github": "ghp_" + some(36),
    "github app": "ghs_" + some(36),
    "github fine": "github_pat_" + some(22) + "_" + some(59),
    "gitlab": "glpat-" + some(20),
    "huggingface": "hf_" + some(34),
    "aws": "AKIA" + some(16, string.ascii_uppercase),
    "google": "AIza" + some(35),
    "slack": "xoxb-" + some(11, string.digits) + "-" + some(12, string.digits) + "-" + some(24),
    "stripe": "sk_live_" + some(24),
    "npm": "npm_" + some(36),
    "groq": "gsk_" + some(52),
    "tavily": "tvly-dev-" + some(32),
    "key block": "-----BEGIN RSA PRIVATE KEY-----\\n" + some(200) + "==\\n-----END RSA PRIVATE KEY-----",
    "header": "Authorization: Bearer " + some(30) + "7",
    "header of a traceback": "{'authorization': 'Bearer " + some(30) + "7",
}

INNOCENT = (
    "risk-adjusted-returns-2024-and-beyond",
    "the task-sk-adjusted-returns-for-the-year-2024-in-europe",
    "sk-adjusted-returns-2024-of-the-whole-market",
    "disk-usage-statistics-of-all-machines-2024",
    "ghp_ is a prefix, " + "ghp_" + some(35),
    "x" + "ghp_" + some(36),
    "ghp_" + some(37),
    "AKIA" + some(17, string.ascii_uppercase),
    "Authorization: Bearer YOUR_API_KEY_GOES_HERE",
    "Authorization: Bearer $TOKEN_OF_2024_AND_MORE",
    "hf_hub_download_of_the_model_in_2024_or_so",
    "-----BEGIN PUBLIC KEY-----" + some(200) + "-----END PUBLIC KEY-----",
    "data:image/png;base64," + some(4000, ALNUM + "+/"),
    "sk-learn, sk-image and npm_config_registry",
)


@pytest.mark.parametrize("name", CREDENTIALS)
@pytest.mark.parametrize("before, after", [("", ""), ("key=", "\n"), ('{"k": "', '"}'), ("世界 ", "。"), ("(", ").")])
def test_a_credential_goes_and_what_stands_around_it_stays(name: str, before: str, after: str) -> None:
    account: Counter[str] = Counter()
    told = blot_text(before + CREDENTIALS[name] + after, "task", account)
    assert account == {"task": 1}
    assert told.startswith(before) and told.endswith(MARK + after) and some(20) not in told


@pytest.mark.parametrize("text", INNOCENT)
def test_what_has_not_the_shape_of_one_stays(text: str) -> None:
    account: Counter[str] = Counter()
    assert blot_text(text, "task", account) == text and not account


def test_the_gateways_own_key_has_the_shape() -> None:
    from slime_agl.gateway.door import mint_key

    for _ in range(50):
        account: Counter[str] = Counter()
        assert blot_text(f"no access with {mint_key()}", "error", account) == f"no access with {MARK}"


@given(st.text())
def test_no_text_without_a_credential_changes(text: str) -> None:
    account: Counter[str] = Counter()
    assert blot_text(text, "task", account) == text


@pytest.mark.parametrize(
    "name", ["api_key", "OPENAI_API_KEY", "x-api-key", "Authorization", "llm.api_key", "aws_secret_access_key"]
)
def test_a_place_is_told_by_its_name(name: str) -> None:
    account: Counter[str] = Counter()
    assert blot({name: "Bearer just-any-words", "text": "just-any-words"}, "row", account) == {
        name: MARK,
        "text": "just-any-words",
    }
    assert account == {"row": 1}


@pytest.mark.parametrize(
    "value", ["dummy", "EMPTY", "none", "", "$OPENAI_API_KEY", "<your key here>", "{{ api_key }}", MARK]
)
def test_a_placeholder_is_no_credential(value: str) -> None:
    account: Counter[str] = Counter()
    assert blot({"api_key": value}, "row", account) == {"api_key": value} and not account


def test_a_struct_is_written_field_by_field() -> None:
    class Seen(Struct):
        api_key: str
        steps: list[int]

    account: Counter[str] = Counter()
    assert blot(Seen("just-any-words-here", [1]), "reward", account) == blot(
        {"api_key": "just-any-words-here", "steps": [1]}, "reward", account
    )


@pytest.mark.parametrize(
    "name", ["token", "tokens", "max_tokens", "key", "keyword", "password_hint", "author", "secret"]
)
def test_other_names_are_no_places(name: str) -> None:
    assert not is_named(name)
    assert is_value("any-long-value")


class Colour(enum.Enum):
    RED = "red"


class Loud:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_anything_becomes_json() -> None:
    held: list[Any] = [1]
    held.append(held)
    deep: Any = "bottom"
    for _ in range(1000):
        deep = [deep]
    value = {
        1: (1, {2}),
        "big": 1 << 80,
        "lone": "\udc80",
        "when": datetime.date(2024, 1, 2),
        "colour": Colour.RED,
        "loud": Loud(),
        "self": held,
        "deep": deep,
        "array": np.arange(3),
        "number": np.float32(0.5),
        "nan": float("nan"),
    }
    again = orjson.loads(orjson.dumps({"execution": {"task": blot(value, "task", Counter())}}))["execution"]["task"]
    assert again["1"] == [1, [2]] and again["big"] == str(1 << 80) and again["lone"] == "\\udc80"
    assert (again["when"], again["colour"], again["loud"]) == ("2024-01-02", "red", "<Loud>")
    assert again["self"] == [1, "…"] and again["array"] == [0, 1, 2] and again["number"] == 0.5


def ledger(prompt: bytes, output: bytes, size: int) -> tuple[Ledger, dict[int, bytes]]:
    """A turn of tokens of `size` bytes each; every token has an id of its own."""
    pieces = [[text[at : at + size] for at in range(0, len(text), size)] for text in (prompt, output)]
    texts = dict(enumerate([*pieces[0], *pieces[1]], 10))
    split = len(pieces[0])
    ids = list(texts)
    out = array("i", ids[split:])
    top_p = TopP(array("i", ids[split:]), array("i", range(len(out) + 1)))
    part = Sampled(ids=out, logprobs=array("d", [-0.5] * len(out)), finish="stop", top_p=top_p)
    held = Ledger("ro", "at")
    held.commit(
        Turn(
            index=0,
            parent=None,
            new_ids=array("i", ids[:split]),
            parts=(part,),
            turn_id="t",
            media=Media("ghp_" + some(36), ("data:x",)),
        )
    )
    held.commit(Turn(index=1, parent=0, new_ids=array("i", ids[:1]), parts=(part,), turn_id="t"))
    held.full.add(0)
    return held, texts


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_a_credential_in_a_prompt_or_an_answer_is_unreadable_and_said(size: int) -> None:
    secret = CREDENTIALS["github"].encode()
    held, texts = ledger(b"my key is " + secret + b" and it is secret", b"you said " + secret + b"!", size)
    account: Counter[str] = Counter()
    kept = blot_ledger(held, texts.__getitem__, account)
    told = {**texts, BLOTTED_ID: b"*"}
    readable = b"".join(told[i] for turn in kept.turns for ids in (turn.new_ids, turn.parts[0].ids) for i in ids)
    readable += b"".join(told[i] for turn in kept.turns for i in turn.parts[0].top_p.ids)
    assert secret[4:12] not in readable and some(8) not in kept.turns[0].media.text
    assert account == {"turn 0 prompt": 2, "turn 0 output": 1, "turn 1 output": 1}
    assert needed_by_a_rerun(account | {"error": 3}) == account
    assert kept.full == {0} and kept.length(1) == held.length(1)
    if size == 1:
        assert b"my key is *" in readable and b"* and it is secret" in readable and b"you said *" in readable
        assert sum(i == BLOTTED_ID for i in kept.turns[0].new_ids) == len(secret)


def test_a_ledger_without_one_is_the_same_object() -> None:
    held = Ledger("ro", "at")
    held.commit(Turn(index=0, parent=None, new_ids=array("i", [1]), parts=(), turn_id="t"))
    assert blot_ledger(held, lambda _: b"risk-adjusted-returns-2024", Counter()) is held

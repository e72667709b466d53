"""The faster encoder: the same ids, or none at all."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from slime_agl.chat.template.encoder import LONGEST_TEXT, FastEncoder, Repeated, fast_encoder, grouped
from slime_agl.chat.template.renderer import Renderer

WORDS = r"""'(?:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    'def search(query: str) -> list:\n    return {"name": "search", "arguments": [1, 22, 333]}\n',
    "the tide, it's",
]


GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{Lm}\p{M}]+(?i:'s|'t|'ll)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KIMI = r"""[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+|\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+"""


def bytewise(model: Any = None, added: list[Any] | None = None, pattern: str = WORDS) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of the common kind, trained on two lines unless a model is given."""
    core = Tokenizer(model or models.BPE())
    core.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    core.decoder = decoders.ByteLevel()
    if model is None:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
        core.train_from_iterator(CORPUS * 20, trainer)
    core.add_special_tokens(SPECIAL)
    core.add_tokens(added or [])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")


@pytest.fixture(scope="module")
def both() -> tuple[PreTrainedTokenizerFast, FastEncoder]:
    tokenizer = bytewise()
    encoder = fast_encoder(tokenizer)
    assert encoder is not None and encoder.decodes
    return tokenizer, encoder


def own(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


pieces = st.sampled_from(
    [*SPECIAL, "<|im_", "|>", "search", " the", "\n", "  ", "e\u0301", "\u0338", "ﬁ", "日本", "👍🏽", "12"]
)


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(pieces | st.text(max_size=8), max_size=12))
def test_any_text_gets_the_tokenizers_ids(both: tuple[PreTrainedTokenizerFast, FastEncoder], parts: list[str]) -> None:
    tokenizer, encoder = both
    text = "".join(parts)
    assert Renderer(tokenizer, chat_template="x", encoder=encoder).encode(text) == own(tokenizer, text)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 520), max_size=24))
def test_any_ids_get_the_tokenizers_text(both: tuple[PreTrainedTokenizerFast, FastEncoder], ids: list[int]) -> None:
    tokenizer, encoder = both
    text = tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
    assert Renderer(tokenizer, chat_template="x", encoder=encoder).decode(array("i", ids)) == text
    assert (encoder.decode(ids) is None) == any(one >= len(tokenizer) for one in ids)


def test_ids_go_to_the_tokenizer_if_its_own_decoder_writes_other_text() -> None:
    tokenizer = bytewise()
    core = tokenizer.backend_tokenizer
    core.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("tide", "ebb")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    encoder = fast_encoder(tokenizer)
    ids = own(tokenizer, "the tide")
    assert encoder is not None and encoder.encode("the tide") == ids and encoder.decode(ids) is None
    assert Renderer(tokenizer, chat_template="x", encoder=encoder).decode(ids) == "the ebb"


@pytest.mark.parametrize("pattern", [WORDS, GPT2, O200K, KIMI], ids=["qwen", "gpt2", "o200k", "kimi"])
@settings(max_examples=200, deadline=None)
@given(
    parts=st.lists(
        pieces | st.sampled_from(["I'll", "'", " ", "\r\n", "\t", "(x|y)"]) | st.text(max_size=8), max_size=12
    )
)
def test_a_grouped_pattern_splits_any_text_alike(pattern: str, parts: list[str]) -> None:
    assert grouped(pattern).startswith("(?:") and grouped(pattern).endswith(r")|\s+(?!\S)|\s+")
    text = "".join(parts)
    one, other = (regex.compile(p, regex.V1).findall(text) for p in (pattern, grouped(pattern)))
    assert one == other


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"a|b|c|d", r"a|b|c|d"),
        (r"a|b(?=c)|d", r"a|b(?=c)|d"),
        (r"a|b|c(?=d)|e", r"(?:a|b)|c(?=d)|e"),
        (r"(?i)a|b|c(?!d)", r"(?i)a|b|c(?!d)"),
        (r"a|b|(c)\1|d", r"(?:a|b)|(c)\1|d"),
        (r"a|\bb|c(?!d)", r"a|\bb|c(?!d)"),
        (r"[a|b]|\||(?:b|c)|\)|\(|d(?!e)", r"(?:[a|b]|\||(?:b|c)|\))|\(|d(?!e)"),
        (r"[]|]|a|b(?!c)", r"[]|]|a|b(?!c)"),
        (r"[^]|]|a|b(?!c)", r"[^]|]|a|b(?!c)"),
        (r"[x[y|z]|]|[^a]|b(?!c)", r"(?:[x[y|z]|]|[^a])|b(?!c)"),
        (r"", r""),
    ],
)
def test_only_alternatives_that_look_at_nothing_else_are_grouped(pattern: str, found: str) -> None:
    assert grouped(pattern) == found


def test_a_text_too_long_for_it_gets_the_tokenizers_ids(both: tuple[PreTrainedTokenizerFast, FastEncoder]) -> None:
    tokenizer, encoder = both
    text = "x" * (LONGEST_TEXT + 1)
    assert encoder.encode(text) is None
    assert Renderer(tokenizer, chat_template="x", encoder=encoder).encode(text) == own(tokenizer, text)


def test_a_renderer_encodes_with_what_it_is_given(
    both: tuple[PreTrainedTokenizerFast, FastEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, encoder = both
    renderer = Renderer(tokenizer, chat_template="{{ 'x' }}", encoder=encoder)
    monkeypatch.setattr(encoder, "encode", lambda text: [len(text)])
    assert renderer.prompt_ids([{"role": "user", "content": ""}], None) == [1]


def test_a_vocabulary_in_which_words_are_not_merged_as_far_as_they_go_is_left_alone() -> None:
    # "abc" is a word, but "ab" and "c" are never merged when "b" and "c" are merged first.
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: at for at, word in enumerate([*letters, "bc", "ab", "abc"])}
    tokenizer = bytewise(models.BPE(vocab=vocabulary, merges=[("b", "c"), ("a", "b"), ("ab", "c")]))
    assert own(tokenizer, "abc") == [vocabulary["a"], vocabulary["bc"]]
    assert fast_encoder(tokenizer) is None


def test_ids_that_are_not_in_the_order_of_merging_are_left_alone() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: at for at, word in enumerate([*letters, "cd", "ab"])}
    assert fast_encoder(bytewise(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("c", "d")]))) is None


@pytest.mark.parametrize(
    "added",
    [
        AddedToken("<pad>", lstrip=True),
        AddedToken("<pad>", single_word=True),
        "<|im_end|>x",
        "a<b",
    ],
    ids=["takes spaces", "whole words", "longer than another", "overlaps another"],
)
def test_added_tokens_that_could_be_found_elsewhere_are_left_alone(added: Any) -> None:
    assert fast_encoder(bytewise(added=[added])) is None


def test_other_kinds_of_tokenizers_are_left_alone(tokenizer_for: Callable[[list[str], str], Renderer]) -> None:
    assert fast_encoder(tokenizer_for(["<a>", "<b>"], "x")._tokenizer) is None, "its pattern is built in"
    assert fast_encoder(object()) is None


def test_a_text_that_comes_again_is_encoded_twice_at_most_and_gets_the_same_ids() -> None:
    asked: list[str] = []
    repeated = Repeated(lambda text: asked.append(text) or [*text.encode()])
    text = "You keep a lighthouse. " * 20
    assert [list(repeated(text)) for _ in range(4)] == [[*text.encode()]] * 4
    assert asked == [text] * 2


def test_texts_are_held_up_to_a_number_of_letters_the_latest_first() -> None:
    asked: list[str] = []
    repeated = Repeated(lambda text: asked.append(text) or [1], room=2500)
    first, second, third = ("a" * 1000, "b" * 1000, "c" * 1000)
    for text in (first, second, third, "d" * 3000):
        repeated(text), repeated(text)
    asked.clear()
    for text in (third, second, first, "d" * 3000):
        repeated(text)
    assert asked == [first, "d" * 3000]

"""The faster encoder: the same ids, or none at all."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastokens
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from slime_agl.chat.template import encoder as encoders
from slime_agl.chat.template.encoder import FastEncoder, fast_encoder
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
    assert encoder is not None and encoder.decode([0]) is not None
    return tokenizer, encoder


def own(tokenizer: PreTrainedTokenizerFast, text: str) -> array:
    return array("i", tokenizer.encode(text, add_special_tokens=False))


pieces = st.sampled_from(
    [*SPECIAL, "<|im_", "|>", "search", " the", "\n", "  ", "e\u0301", "\u0338", "ﬁ", "日本", "👍🏽", "12"]
)


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(pieces | st.text(max_size=8), max_size=12))
def test_any_text_gets_the_tokenizers_ids(both: tuple[PreTrainedTokenizerFast, FastEncoder], parts: list[str]) -> None:
    tokenizer, encoder = both
    text = "".join(parts)
    assert Renderer(tokenizer, chat_template="x", encoder=encoder).packed(text) == own(tokenizer, text)


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
def test_every_common_pattern_is_supported(pattern: str) -> None:
    tokenizer = bytewise(pattern=pattern)
    encoder = fast_encoder(tokenizer)
    assert encoder is not None and encoder.decode(own(tokenizer, "the tide")) == "the tide"
    signs, chance = [*encoders.SIGNS, *SPECIAL], random.Random(7)
    for _ in range(500):
        text = "".join(chance.choices(signs, k=chance.randrange(40)))
        assert encoder.encode(text) == own(tokenizer, text)


def test_a_text_that_it_cannot_encode_goes_to_the_tokenizer(both: tuple[PreTrainedTokenizerFast, FastEncoder]) -> None:
    tokenizer, encoder = both
    assert encoder.encode("half a pair: \ud83d") is None
    with pytest.raises(TypeError):
        Renderer(tokenizer, chat_template="x", encoder=encoder).encode("half a pair: \ud83d")


@pytest.mark.parametrize("sign", ["x", " ", "\n", "=", "é", "中"])
def test_long_runs_get_the_tokenizers_ids(both: tuple[PreTrainedTokenizerFast, FastEncoder], sign: str) -> None:
    tokenizer, encoder = both
    assert encoder.encode(sign * 300_000) == own(tokenizer, sign * 300_000)


def test_threads_encode_at_once(both: tuple[PreTrainedTokenizerFast, FastEncoder]) -> None:
    tokenizer, encoder = both
    texts = [f"{number} tides of {number * 7919}, it's <|end|>" * number for number in range(60)]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(encoder.encode, texts * 5)] == [own(tokenizer, text) for text in texts] * 5


def test_settings_of_the_tokenizer_do_not_cut_or_pad_its_ids() -> None:
    tokenizer = bytewise()
    plain = own(tokenizer, "the tide")
    core = tokenizer.backend_tokenizer
    core.enable_truncation(1)
    core.enable_padding(length=40)
    encoder = fast_encoder(tokenizer)
    assert encoder is not None and encoder.encode("the tide") == plain
    assert Renderer(tokenizer, chat_template="x", encoder=encoder).packed("the tide") == plain


def test_a_renderer_encodes_with_what_it_is_given(
    both: tuple[PreTrainedTokenizerFast, FastEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, encoder = both
    renderer = Renderer(tokenizer, chat_template="{{ 'x' }}", encoder=encoder)
    monkeypatch.setattr(encoder, "encode", lambda text: array("i", [len(text)]))
    assert renderer.prompt_ids([{"role": "user", "content": ""}], None) == [1]


def reordered() -> PreTrainedTokenizerFast:
    """Ids that are not in the order of merging, and a word that is never merged."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: at for at, word in enumerate([*letters, "abc", "ab", "bc"])}
    return bytewise(models.BPE(vocab=vocabulary, merges=[("b", "c"), ("a", "b"), ("ab", "c")]))


ODD = {
    "an odd order of merges": reordered,
    "added tokens that take spaces": lambda: bytewise(added=[AddedToken("<pad>", lstrip=True)]),
    "added tokens that are whole words": lambda: bytewise(added=[AddedToken("<pad>", single_word=True)]),
    "an added token longer than another": lambda: bytewise(added=["<|im_end|>x"]),
    "an added token that overlaps another": lambda: bytewise(added=["a<b"]),
}


@pytest.mark.parametrize("made", ODD.values(), ids=ODD)
def test_odd_tokenizers_are_encoded_for_exactly_or_left_alone(made: Callable[[], PreTrainedTokenizerFast]) -> None:
    tokenizer, chance = made(), random.Random(3)
    encoder = fast_encoder(tokenizer)
    renderer = Renderer(tokenizer, chat_template="x", encoder=encoder)
    signs = ["abc", "a", "b", "c", " <pad> ", "x<pad>", "<pad>", "a<b", "a<|im_end|>x", " ", "\n", *SPECIAL]
    for _ in range(500):
        text = "".join(chance.choices(signs, k=chance.randrange(12)))
        assert renderer.packed(text) == own(tokenizer, text)


def test_an_encoder_with_other_ids_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the pattern splits words that the other one keeps: only trials can tell."""
    read = fastokens.Tokenizer.from_json_str
    faulty = bytewise(pattern=GPT2).backend_tokenizer.to_str()
    monkeypatch.setattr(fastokens.Tokenizer, "from_json_str", lambda _: read(faulty))
    with caplog.at_level("INFO"):
        assert fast_encoder(bytewise()) is None
    assert "differently" in caplog.text


def test_what_fastokens_does_not_support_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    core = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    with caplog.at_level("INFO"):
        assert fast_encoder(PreTrainedTokenizerFast(tokenizer_object=core)) is None
    assert "does not support" in caplog.text
    assert fast_encoder(object()) is None

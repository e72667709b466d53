"""Encode and decode faster than the tokenizer itself, where that provably gives the same ids and text.

fastokens reads the same tokenizer.json. With Qwen's vocabulary it encodes 200 tokens of Python in 2 us, Hugging Face's
tokenizers in 160. Decoding 1,000 ids takes 34 us by a table, 60 and 98 with the two libraries. Both are compared with
the tokenizer before use.
"""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from slime_agl.chat.template.token_text import token_bytes
from slime_agl.chat.template.tokenizer import Tokenizer, private_core
from slime_agl.trace.turn import token_array

if TYPE_CHECKING:
    from fastokens import Tokenizer as Fast
    from tokenizers import Tokenizer as Core

logger = logging.getLogger(__name__)

TRIALS, TOKENS_PER_TRIAL, SIGNS_PER_TRIAL = 1500, 24, 12
SPECIMENS = (
    "",
    " ",
    "\n",
    "\n\n",
    " \n \n",
    "  two  spaces ",
    "tab\tand\r\nreturns\r\r\n",
    "    indented = {'a': [1, 2.50]}\n",
    "I'm, you're, it's, WE'LL, they'd, o'clock, don'ts; 'S 'T",
    "12 345 6789 0.001 1e-9 2026-08-01T10:00:00Z 1,000",
    '{"name": "search", "arguments": {"query": "caf\\u00e9 \\"x\\"", "n": 3}}',
    "</tool_response>\n<tool_response>\n",
    "naïve café Ünïcödé Straße ŒUVRE ﬁnance",
    "Привет, мир! Γειά σου Κόσμε",
    "日本語のテキスト。中文文本,全角！한국어 문장",
    "مرحبا بالعالم שלום עולם हिन्दी ไทย",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪 ✓ ∑∫√ →",
    "a\u0301 e\u0323\u0302 \u200b\u200d\ufeff\u00a0\u2028",
    "x" * 300,
    "=" * 80 + "\n" + "-" * 81,
    "((((]]]]}}}};;;;$$$$####@@@@!!!!????",
    "snake_case camelCase SCREAMING-KEBAB x86_64",
)
# One or more of each class of characters that patterns tell apart; what follows what decides where words end.
SIGNS = (
    *("a", "Z", "ll", "S", "é", "ß", "ǅ", "ʰ", "ж", "中", "ア", "ن", "क", "\u0301", "\u0903", "\u20dd"),
    *("1", "٣", "Ⅷ", "½", " ", "  ", "\n", "\r", "\t", "\x0b", "\u00a0", "\u2003", "\u2028", "\u3000", "\x00", "\x85"),
    *("'", "’", ".", "-", "/", "_", "(", "$", "+", "^", "|", "<", "€", "👍", "\u200d", "\u00ad", "\ue000"),
)


class FastEncoder:
    """Encodes and decodes in place of a tokenizer's own core. Thread-safe.

    texts: bytes of each id; None if concatenating them does not give the text that the tokenizer writes.
    """

    def __init__(self, fast: Fast, texts: Mapping[int, bytes] | None) -> None:
        self._fast, self._texts = fast, texts

    def encode(self, text: str) -> array | None:
        """Return the ids of `text`, adding no special tokens; None if only the core can encode it."""
        try:
            packed, _ = self._fast.encode_batch_flat([text])
        except Exception as error:  # a limit that the core does not have, or text that the core refuses too
            logger.debug("encoding %d characters with the tokenizer itself: %s", len(text), error)
            return None
        ids = array("i")
        ids.frombytes(packed)
        return ids

    def decode(self, ids: Sequence[int]) -> str | None:
        """Return the text of `ids`, special tokens included; None if only the core can decode them."""
        if self._texts is None:
            return None
        try:
            return b"".join(map(self._texts.__getitem__, ids)).decode("utf-8", "replace")
        except KeyError:  # the tokenizer ignores ids that it does not know
            return None


def fast_encoder(tokenizer: Tokenizer) -> FastEncoder | None:
    """Build an encoder with the same ids as the tokenizer.

    Returns None if fastokens does not support the tokenizer, or if any trial text gives other ids.
    """
    import fastokens

    core = private_core(tokenizer)
    if core is None:
        return None
    try:
        fast = fastokens.Tokenizer.from_json_str(core.to_str())
    except Exception as error:  # it has no type of its own for what it does not support
        logger.info("encoding with the tokenizer itself, which fastokens does not support: %s", error)
        return None
    encoder = FastEncoder(fast, None)
    vocabulary, added = _vocabulary(core)
    tried = 0
    for text in _trials(core, vocabulary, list(added.values())):
        tried += 1
        if encoder.encode(text) != token_array(core.encode(text, add_special_tokens=False).ids):
            logger.info("fastokens encodes %r differently; encoding with the tokenizer itself", text[:60])
            return None
    logger.info("encoding with fastokens; it agrees with the tokenizer on %d texts", tried)
    ids = [*vocabulary, *added]
    texts = FastEncoder(fast, dict(zip(ids, token_bytes(tokenizer, ids), strict=True)))
    samples = _some_ids(vocabulary, list(added))
    agrees = all(texts.decode(some) == core.decode(some, skip_special_tokens=False) for some in samples)
    return texts if agrees else encoder


def _vocabulary(core: Core) -> tuple[list[int], dict[int, str]]:
    """Return the ids of words, and the texts of added tokens by id."""
    added = {number: token.content for number, token in core.get_added_tokens_decoder().items()}
    return sorted(set(core.get_vocab().values()) - added.keys()), added


def _some_ids(words: list[int], added: list[int]) -> Iterator[list[int]]:
    """Yield each added token, all of them in a row, and random ids, which split characters."""
    yield from ([token] for token in added)
    yield added
    chance = random.Random(0)
    for _ in range(TRIALS):
        yield chance.choices(words, k=TOKENS_PER_TRIAL)


def _trials(core: Core, words: list[int], special: list[str]) -> Iterator[str]:
    """Yield specimens, alone and between added tokens, random words of the vocabulary, and random signs."""
    yield from special
    for specimen in SPECIMENS:
        yield specimen
        for token in special[:8]:
            yield f"{specimen}{token}{specimen}{token}"
    chance = random.Random(0)
    for _ in range(TRIALS):
        drawn = core.decode(chance.choices(words, k=TOKENS_PER_TRIAL), skip_special_tokens=False)
        yield drawn + (chance.choice(special) if special and chance.random() < 0.3 else "") + chance.choice(SPECIMENS)
    signs = [*SIGNS, *special]
    for _ in range(TRIALS):
        yield "".join(chance.choices(signs, k=chance.randrange(1, SIGNS_PER_TRIAL)))

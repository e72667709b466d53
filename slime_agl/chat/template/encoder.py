"""A faster encoder of the same vocabulary, used only where it is seen to be the same.

tiktoken splits and merges byte-level BPE several times as fast as Hugging Face's tokenizers. It is
built from the tokenizer's own vocabulary, pattern and added tokens, and compared before it is used.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from slime_agl.lru import LRU

logger = logging.getLogger(__name__)

Encode = Callable[[str], list[int]]

# Longer texts go to the tokenizer itself: tiktoken's pattern matcher gives up on endless words.
LONGEST_TEXT = 200_000
PROOFS, TOKENS_A_PROOF = 1500, 24
# Letters of texts that came more than once, and how long the shortest of them is; and how many are known to have come.
REPEATED_ROOM, SHORTEST_REPEATED, SEEN = 2_000_000, 200, 4096
SPECIMENS = (
    "", " ", "\n", "\n\n", " \n \n", "  two  spaces ", "tab\tand\r\nreturns\r\r\n", "    indented = {'a': [1, 2.50]}\n",
    "I'm, you're, it's, WE'LL, they'd, o'clock, don'ts; 'S 'T", "12 345 6789 0.001 1e-9 2026-08-01T10:00:00Z 1,000",
    '{"name": "search", "arguments": {"query": "caf\\u00e9 \\"x\\"", "n": 3}}', "</tool_response>\n<tool_response>\n",
    "naïve café Ünïcödé Straße ŒUVRE ﬁnance", "Привет, мир! Γειά σου Κόσμε", "日本語のテキスト。中文文本,全角！한국어 문장",
    "مرحبا بالعالم שלום עולם हिन्दी ไทย", "👍🏽 👩‍👩‍👧‍👦 🇩🇪 ✓ ∑∫√ →", "a\u0301 e\u0323\u0302 \u200b\u200d\ufeff\u00a0\u2028",
    "x" * 300, "=" * 80 + "\n" + "-" * 81, "((((]]]]}}}};;;;$$$$####@@@@!!!!????", "snake_case camelCase SCREAMING-KEBAB x86_64",
)  # fmt: skip


def fast_encoder(tokenizer: Any) -> Encode | None:
    """Return an encoder that gives what the tokenizer's own gives, without special tokens added; None when
    the tokenizer is of another kind, or one text of many comes out differently."""
    import tiktoken

    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None or (pattern := _pattern(core)) is None:
        return None
    model = orjson.loads(core.to_str())
    ranks, special = _ranks(model["model"]), _special(model["added_tokens"])
    if ranks is None or special is None:
        return None
    added = frozenset(special.values())
    words = {word: rank for word, rank in ranks.items() if rank not in added}
    encoding = tiktoken.Encoding("slime_agl", pat_str=pattern, mergeable_ranks=words, special_tokens=special)
    composes = model["normalizer"] is not None
    pieces = _between(special)
    words_of = Repeated(encoding.encode_ordinary)

    def own(text: str) -> list[int]:
        return core.encode(text, add_special_tokens=False).ids

    def encode(text: str) -> list[int]:
        if len(text) > LONGEST_TEXT or (composes and not unicodedata.is_normalized("NFC", text)):
            return own(text)
        # tiktoken looks for added tokens with a pattern matcher that takes longer than all the rest.
        ids: list[int] = []
        for at, piece in enumerate(pieces(text)):
            if at % 2:
                ids.append(special[piece])
            elif piece:
                ids += words_of(piece)
        return ids

    tried = 0
    for text in _texts(list(words), list(special)):
        tried += 1
        if encode(text) != own(text):
            logger.info("tiktoken splits %r differently from the tokenizer, which is used", text[:60])
            return None
    logger.info("encoding with tiktoken, equal to the tokenizer on %d texts", tried)
    return encode


def _between(special: Mapping[str, int]) -> Callable[[str], list[str]]:
    """A function that cuts a text into what stands between added tokens, and those, in turn."""
    if not special:
        return lambda text: [text]
    return re.compile("(" + "|".join(map(re.escape, special)) + ")").split


class Repeated:
    """Encodes texts, and holds the ids of those that came before: system prompts and tools open many conversations.

    A text is held from its second time on. Texts of `room` letters in all are held, those used last.
    """

    def __init__(self, encode: Encode, room: int = REPEATED_ROOM) -> None:
        self._encode, self._room = encode, room
        self._seen: LRU[int, None] = LRU(SEEN)
        self._held: LRU[str, array] = LRU(room, size=len)
        self._lock = threading.Lock()

    def __call__(self, text: str) -> Sequence[int]:
        if len(text) < SHORTEST_REPEATED:
            return self._encode(text)
        with self._lock:
            held = self._held.used(text)
        if held is not None:
            return held
        ids = self._encode(text)
        with self._lock:
            self._note(text, ids)
        return ids

    def _note(self, text: str, ids: list[int]) -> None:
        if hash(text) not in self._seen:
            self._seen[hash(text)] = None
        elif text not in self._held and len(text) <= self._room:
            self._held[text] = array("i", ids)


def _pattern(core: Any) -> str | None:
    """The pattern that cuts text into words before merging; None for any pipeline but one pattern on bytes."""
    if core.pre_tokenizer is None or core.truncation is not None:
        return None
    steps = orjson.loads(core.pre_tokenizer.__getstate__())
    steps = steps.get("pretokenizers", [steps])
    if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
        return None
    split, level = steps
    plain = split["behavior"] == "Isolated" and not split["invert"]
    if not plain or level["add_prefix_space"] or level["use_regex"]:
        return None
    kind = None if core.normalizer is None else orjson.loads(core.normalizer.__getstate__())["type"]
    return split["pattern"].get("Regex") if kind in (None, "NFC") else None


def _ranks(model: Mapping[str, Any]) -> dict[bytes, int] | None:
    """The vocabulary as bytes to ids, when ids are the order of merging; else None."""
    plain = not any(
        model.get(name)
        for name in ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "unk_token")
    )
    if model.get("type") != "BPE" or not plain:
        return None
    letters, vocabulary = _bytes_of_letters(), model["vocab"]
    merged = [vocabulary["".join(pair if isinstance(pair, list) else pair.split(" "))] for pair in model["merges"]]
    if any(before > after for before, after in zip(merged, merged[1:], strict=False)):
        return None
    try:
        ranks = {bytes(letters[letter] for letter in word): rank for word, rank in vocabulary.items()}
    except KeyError:
        return None
    return ranks if all(bytes([value]) in ranks for value in range(256)) else None


def _special(added: Sequence[Mapping[str, Any]]) -> dict[str, int] | None:
    """Added tokens by text; None when which one is found where could depend on how it is looked for."""
    if any(token["single_word"] or token["lstrip"] or token["rstrip"] for token in added):
        return None
    texts = sorted(token["content"] for token in added)
    openers = {text[:1] for text in texts}
    if any(openers & set(text[1:]) for text in texts) or any(
        longer.startswith(shorter) for shorter, longer in zip(texts, texts[1:], strict=False)
    ):
        return None
    return {token["content"]: token["id"] for token in added}


def _texts(words: list[bytes], special: list[str]) -> Iterator[str]:
    """Specimens, each also between added tokens; and words of the vocabulary, strung together at random."""
    for specimen in SPECIMENS:
        yield specimen
        for token in special[:8]:
            yield f"{specimen}{token}{specimen}{token}"
    chance = random.Random(0)
    for _ in range(PROOFS):
        drawn = b"".join(chance.choices(words, k=TOKENS_A_PROOF)).decode("utf-8", "ignore")
        yield drawn + (chance.choice(special) if special and chance.random() < 0.3 else "") + chance.choice(SPECIMENS)


def _bytes_of_letters() -> dict[str, int]:
    """The letters in which byte-level BPE writes bytes (GPT-2's table): printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in set(printable)]
    return {chr(value): value for value in printable} | {chr(256 + at): value for at, value in enumerate(others)}

"""The text of single tokens, as bytes: for showing them, never for encoding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """Return the UTF-8 bytes that each id stands for; a token may hold part of a character.

    Reads the spellings of the two common kinds of vocabulary: byte-level ones, which write each byte as a
    printable letter (GPT-2, Llama 3, Qwen), and SentencePiece ones, which write a space as U+2581 and stray
    bytes as `<0xE2>`. An id outside the vocabulary becomes `<id>`.
    """
    added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
    core = getattr(tokenizer, "backend_tokenizer", None)
    of_bytes = core is not None and "ByteLevel" in repr(core.decoder)
    out = []
    for i, token in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if i in added or token is None:
            out.append(added.get(i, f"<{i}>").encode())
        elif of_bytes:
            out.append(_from_letters(token))
        elif byte := _BYTE.fullmatch(token):
            out.append(bytes([int(byte[1], 16)]))
        else:
            out.append(token.replace("\u2581", " ").encode())
    return out


def _from_letters(token: str) -> bytes:
    letters = _letters()
    if all(letter in letters for letter in token):
        return bytes(letters[letter] for letter in token)
    return token.encode()


@cache
def _letters() -> dict[str, int]:
    """The letter that byte-level vocabularies write for each byte: itself where it is printable, else one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}

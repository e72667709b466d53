"""The text of single tokens, as bytes: for display, never for encoding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from slime_agl.chat.template.tokenizer import Tokenizer, core_of

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: Tokenizer, ids: Sequence[int]) -> list[bytes]:
    """Return the UTF-8 bytes that each id stands for; a token may be part of a character.

    Reads the two common kinds of vocabulary: byte-level, where each byte is written as a printable character (GPT-2,
    Llama 3, Qwen), and SentencePiece, where a space is written as U+2581 and a stray byte as `<0xE2>`. An id outside
    the vocabulary becomes `<id>`.
    """
    added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
    core = core_of(tokenizer)
    of_bytes = core is not None and "ByteLevel" in repr(core.decoder)
    out = []
    for i, token in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if i in added or token is None:
            out.append(added.get(i, f"<{i}>").encode())
        elif of_bytes:
            out.append(_from_characters(token))
        elif byte := _BYTE.fullmatch(token):
            out.append(bytes([int(byte[1], 16)]))
        else:
            out.append(token.replace("\u2581", " ").encode())
    return out


def _from_characters(token: str) -> bytes:
    values = byte_of_character()
    if all(character in values for character in token):
        return bytes(values[character] for character in token)
    return token.encode()


@cache
def byte_of_character() -> dict[str, int]:
    """Map the characters of byte-level vocabularies (GPT-2's table) to bytes.

    A printable byte is written as itself, any other as a character from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}

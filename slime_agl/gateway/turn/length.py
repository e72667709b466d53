"""Texts that are too long to be encoded as a whole just to learn that they are too long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slime_agl.gateway.bodies import BYTES_PER_TOKEN
from slime_agl.gateway.refusal import context_overflow, overlong

# Letters that are encoded to see whether a text fits, about twice what makes up a token.
HEAD_PER_TOKEN = 8
# Tokens that a cut may add, and tokens that templates write.
SLACK = 64


def check_length(texts: Iterable[str], tokens: int, encode: Callable[[str], Sequence[int]]) -> None:
    """Refuse texts of which the first part alone is longer than a context of `tokens`.

    Raises:
        Refusal: 400 context_length_exceeded, with both numbers.
    """
    texts = list(texts)
    said, most = sum(map(len, texts)), BYTES_PER_TOKEN * tokens
    if said > most:
        raise overlong(f"{said} characters", most, "characters", tokens)
    shown, room = 0, HEAD_PER_TOKEN * tokens
    for text in texts:
        head = text[:room]
        shown += len(encode(head))
        if shown > tokens + SLACK:
            raise context_overflow(shown, tokens, least=True)
        room -= len(head)
        if not room:
            return

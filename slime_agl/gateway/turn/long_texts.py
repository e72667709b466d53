"""Encode long texts on a thread, and reject hopelessly long ones after encoding only their start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from slime_agl.chat.template.renderer import Renderer
from slime_agl.gateway.bodies import BYTES_PER_TOKEN
from slime_agl.gateway.refusal import Refusal, context_overflow, overlong
from slime_agl.gateway.turn.encoders import Encoders

if TYPE_CHECKING:
    from slime_agl.gateway.sessions.session import Session

# Characters below which encoding inline is cheaper than a thread hop.
SHORT_TEXT = 4000
# Characters per token of context to encode when testing whether a text fits: about twice the average token.
HEAD_PER_TOKEN = 8
# Tolerance in tokens for the cut and for text that templates add.
SLACK = 64
T = TypeVar("T")


class LongTexts:
    """Renders and encodes off the event loop, one text per session at a time."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._encoders = Encoders()
        self._images: bool | None = None

    def close(self) -> None:
        self._encoders.close()

    async def shows_images(self, session: Session) -> bool:
        """Load the image processor on first use; return False if there is none."""
        if self._images is None:
            self._images = await self._encoders.run(session, self.renderer.vision.available)
        return self._images

    async def encoded(self, session: Session, text: str, *, special: bool = False) -> Sequence[int]:
        """Encode a text, on a thread unless it is short."""
        encode = partial(self.renderer.encode, text, add_special_tokens=special)
        return encode() if len(text) < SHORT_TEXT else await self.run(session, encode, len(text), text)

    async def run(self, session: Session, work: Callable[[], T], said: int, *texts: str) -> T:
        """Run `work` on a thread. said: number of characters it renders or encodes; `texts`: most of them.

        Raises:
            Refusal: 400 context_length_exceeded, the start of the texts alone exceeds the context.
        """
        tokens = session.bounds.tokens
        if said <= HEAD_PER_TOKEN * tokens:
            return await self._encoders.run(session, work)

        def checked() -> T:
            check_length(texts, tokens, self.renderer.encode)
            return work()

        try:
            return await self._encoders.run(session, checked)
        except Refusal as refusal:
            raise session.overflowed(refusal) from None


def check_length(texts: Iterable[str], tokens: int, encode: Callable[[str], Sequence[int]]) -> None:
    """Check that the start of the texts alone does not exceed a context of `tokens`.

    Raises:
        Refusal: 400 context_length_exceeded, with both numbers.
    """
    texts = list(texts)
    said, most = sum(map(len, texts)), BYTES_PER_TOKEN * tokens
    if said > most:
        raise overlong(f"{said} characters", most, "characters", tokens)
    counted, room = 0, HEAD_PER_TOKEN * tokens
    for text in texts:
        head = text[:room]
        counted += len(encode(head))
        if counted > tokens + SLACK:
            raise context_overflow(counted, tokens, least=True)
        room -= len(head)
        if not room:
            return

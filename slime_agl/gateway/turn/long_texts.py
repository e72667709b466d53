"""Long texts: encoded on a thread, and not as a whole just to learn that they are too long."""

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

# Characters of a text that is encoded in about the time that a thread takes to begin.
SHORT_TEXT = 4000
# Letters that are encoded to see whether a text fits, about twice what makes up a token.
HEAD_PER_TOKEN = 8
# Tokens that a cut may add, and tokens that templates write.
SLACK = 64
T = TypeVar("T")


class LongTexts:
    """Renders and encodes off the event loop, for one session at a time what is its own."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._encoders = Encoders()
        self._images: bool | None = None

    def close(self) -> None:
        self._encoders.close()

    async def shows_images(self, session: Session) -> bool:
        """Whether there is a processor for images; loads it the first time."""
        if self._images is None:
            self._images = await self._encoders.run(session, self.renderer.vision.available)
        return self._images

    async def encoded(self, session: Session, text: str, *, special: bool = False) -> Sequence[int]:
        """The ids of a text, encoded off the loop unless it is short."""
        encode = partial(self.renderer.encode, text, add_special_tokens=special)
        return encode() if len(text) < SHORT_TEXT else await self.run(session, encode, len(text), text)

    async def run(self, session: Session, work: Callable[[], T], said: int, *texts: str) -> T:
        """Render or encode what says `said` characters, of which `texts` are most, on a thread.

        Raises:
            Refusal: 400 context_length_exceeded, where the first of it is seen to be more than the context holds.
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

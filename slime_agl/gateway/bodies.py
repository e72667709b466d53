"""Request bodies: size limits, admission per attempt, reading in time; and JSON output."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import orjson

from slime_agl.gateway.refusal import Refusal, context_overflow, overlong
from slime_agl.gateway.request import TurnRequest

JSON = "application/json"
MIB = 2**20
# Bytes per token in the worst case. A token is about four characters, up to six times that in JSON escapes.
BYTES_PER_TOKEN = 64
# Bytes of a body besides the prompt: echoed logprobs and reasoning, schemas, metadata.
BESIDE = 16 * MIB
# Minimum tokens per image, and maximum average bytes.
TOKENS_PER_IMAGE, BYTES_PER_IMAGE = 64, 4 * MIB
LARGEST_BODY = 512 * MIB
# Assumed if no context limit is known.
LONGEST_CONTEXT = 1_000_000
# Time for a body to arrive: a constant plus its size at a minimum rate, with no longer pause between two parts of it.
BODY_SECONDS, BYTES_PER_SECOND, PAUSE_SECONDS = 60.0, 256 * 1024, 10.0
# Reserved for a body before anything of it has arrived. A client that announces much and sends nothing holds no more.
FIRST_BYTES = 64 * 1024
# Per attempt: requests served concurrently, requests waiting, and total bytes of the bodies served.
MOST_SERVED, MOST_WAITING, SERVED_BYTES = 1024, 1024, 256 * MIB
MOST_TURNS = 4096


class Bounds:
    """Size limits of a request, in bytes. tokens: the attempt's context limit, None if unknown."""

    __slots__ = ("body", "structure", "tokens", "with_images")

    def __init__(self, tokens: int | None) -> None:
        self.tokens = tokens or LONGEST_CONTEXT
        self.body = min(LARGEST_BODY, BESIDE + BYTES_PER_TOKEN * self.tokens)
        self.with_images = min(LARGEST_BODY, self.body + self.tokens // TOKENS_PER_IMAGE * BYTES_PER_IMAGE)
        # Commas and brackets, of which base64 images have none.
        self.structure = self.body // 4

    def too_large(self, size: int, images: bool) -> Refusal:
        """The refusal of a body of `size` bytes or more."""
        return overlong(f"a body of {size} bytes", self.with_images if images else self.body, "bytes", self.tokens)

    def check_structure(self, raw: bytes) -> None:
        """Refuse a body whose size is not due to images. Raises Refusal, 400."""
        if len(raw) <= self.body:
            return
        marks = raw.count(b",") + raw.count(b"{") + raw.count(b"[")
        if marks > self.structure:
            raise overlong(f"a body with {marks} commas and brackets", self.structure, "of them", self.tokens)

    def check_turns(self, turns: Sequence[TurnRequest]) -> None:
        """Refuse more messages or tools than tokens, or an absurd number of answers. Raises Refusal, 400."""
        first = turns[0]
        if len(first.messages) > self.tokens:
            raise context_overflow(len(first.messages), self.tokens, least=True)
        if first.tools and len(first.tools) > self.tokens:
            raise context_overflow(len(first.tools), self.tokens, least=True)
        if len(turns) * first.n > MOST_TURNS:
            raise Refusal(
                400,
                f"{len(turns)} prompts with n {first.n} ask for {len(turns) * first.n} answers, one request may ask "
                f"for {MOST_TURNS}",
                param="n",
            )


class Served:
    """Admission of one attempt's requests by number and size. The others queue."""

    __slots__ = ("_bytes", "_count", "_waiting")

    def __init__(self) -> None:
        self._bytes = self._count = 0
        # Bytes and requests (0 for more of one that is served) wanted, and who waits.
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] | None = None

    async def enter(self, size: int, count: int = 1) -> None:
        """Wait until a request of `size` bytes can be served. Balance with `leave`.

        count: 0 for `size` bytes more of a request that is served already.

        Raises:
            Refusal: 429, too many are waiting already.
        """
        if not self._waiting and self._fits(size, count):
            self._bytes += size
            self._count += count
            return
        if self._waiting is None:
            self._waiting = deque()
        if len(self._waiting) >= MOST_WAITING:
            raise Refusal(
                429,
                f"{self._count} requests of this attempt are served and {len(self._waiting)} wait, at most "
                f"{MOST_SERVED} and {MOST_WAITING} can; make fewer at a time",
                type="rate_limit_error",
                code="too_many_requests",
                retry=True,
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):
                    self._waiting.remove((size, count, turn))
                self._admit()
            else:
                self.leave(size, count)
            raise

    def resize(self, size: int, now: int) -> None:
        """Correct the size of a request being served."""
        self._bytes += now - size
        if now < size:
            self._admit()

    def leave(self, size: int, count: int = 1) -> None:
        self._bytes -= size
        self._count -= count
        if self._waiting:
            self._admit()

    def _fits(self, size: int, count: int) -> bool:
        # However large a body may be, it passes beside what has only begun to arrive.
        size = min(size, SERVED_BYTES // 2)
        return self._count + count <= MOST_SERVED and self._bytes + size <= SERVED_BYTES

    def _admit(self) -> None:
        while self._waiting and self._fits(*self._waiting[0][:2]):
            size, count, turn = self._waiting.popleft()
            if not turn.done():
                self._bytes += size
                self._count += count
                turn.set_result(None)


class Place:
    """One request's admission. expected: the bytes that its body may have."""

    __slots__ = ("_expected", "_reserved", "_served")

    def __init__(self, served: Served, expected: int) -> None:
        self._served, self._expected = served, expected
        self._reserved = min(expected, FIRST_BYTES)

    async def enter(self) -> None:
        """Wait until its body can begin to arrive. Balance with `leave`. Raises as `Served.enter`."""
        await self._served.enter(self._reserved)

    async def grow(self) -> None:
        """Wait until the rest of its body can arrive too."""
        await self._served.enter(self._expected - self._reserved, 0)
        self._reserved = self._expected

    def settle(self, size: int) -> None:
        """The body has arrived and has this size."""
        self._served.resize(self._reserved, size)
        self._reserved = size

    def leave(self) -> None:
        self._served.leave(self._reserved)


def check_kind(headers: Mapping[str, str]) -> None:
    """Refuse a body that is not plain JSON. Raises Refusal, 415.

    Browsers send other content types without a preflight, and a compressed body may expand to any size.
    """
    kind = headers.get("Content-Type", "")
    if kind != JSON and kind.partition(";")[0].strip().lower() != JSON:
        raise Refusal(415, f"Content-Type is {kind[:100]!r}; send {JSON}", code="unsupported_media_type")
    packed = headers.get("Content-Encoding")
    if packed is not None and packed.strip().lower() != "identity":
        raise Refusal(
            415,
            f"Content-Encoding {packed[:100]!r} is not taken; send the body as it is",
            code="unsupported_content_encoding",
        )


class BrokenBody(Exception):
    """The body of a request is not framed as HTTP says."""


class Incoming(Protocol):
    """A body that arrives, or has."""

    @property
    def arrived(self) -> bool: ...

    def read_nowait(self) -> bytes:
        """Return what has arrived since the last call."""
        ...

    async def read_some(self) -> bytes:
        """Wait for more and return it; b'' at the end. Raises BrokenBody."""
        ...


async def read_body(body: Incoming, limit: int, place: Place) -> bytes | None:
    """Read the body; None if it exceeds `limit` bytes. place: grows when more arrives than it has reserved at first.

    Raises:
        Refusal: 400 if it is malformed, 408 if it does not arrive in time, 429 if too many wait.
    """
    if body.arrived:
        raw = body.read_nowait()
        return raw if len(raw) <= limit else None
    clock = asyncio.get_running_loop().time
    end = clock() + BODY_SECONDS + limit / BYTES_PER_SECOND
    try:
        async with asyncio.timeout_at(min(end, clock() + PAUSE_SECONDS)) as deadline:
            parts, size, first = [], 0, True
            while part := await body.read_some():
                size += len(part)
                if size > limit:
                    return None
                if first and size > FIRST_BYTES:
                    first = False
                    deadline.reschedule(end)  # waiting for room is no pause of the client's
                    await place.grow()
                deadline.reschedule(min(end, clock() + PAUSE_SECONDS))
                parts.append(part)
            return b"".join(parts)
    except TimeoutError as error:
        raise Refusal(
            408, "the request body did not arrive in time", type="timeout_error", code="request_timeout", retry=True
        ) from error
    except BrokenBody as error:
        raise Refusal(400, "the request body cannot be read: it is not framed as HTTP says") from error


def json_bytes(value: object) -> bytes:
    """Serialise as UTF-8. A model's arguments may contain larger numbers or deeper nesting than orjson supports."""
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only escape
        return json.dumps(value, separators=(",", ":")).encode()

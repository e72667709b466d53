"""A model of an engine in simulated time: continuous batching over a bounded token pool with a prefix cache.

What it keeps of the real thing: requests are admitted in order while the pool holds them; a prompt's cached beginning
costs nothing, the rest is prefilled in chunks that share the iteration with decoding; what running requests do not need
caches the conversations that ended last, and is evicted from the longest unused; a request that outgrows the pool is
sent back to the queue. The figures are of an 8B model on one large GPU.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slime_agl.engine.base import Load

POOL = 400_000  # tokens
CHUNK = 8192  # prompt tokens of an iteration
# Seconds: of an iteration, of a prompt token, of a sequence that decodes, of a token that it reads.
ITERATION, PREFILL, DECODE, READ = 6e-3, 5e-5, 2e-5, 4e-8


@dataclass(eq=False, slots=True)
class Request:
    """One turn. conversation: whose cache it continues. prompt, output: tokens. done: called when it is answered."""

    conversation: int
    prompt: int
    output: int
    done: Callable[[], None]
    to_prefill: int = 0
    made: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt - self.to_prefill + self.made


@dataclass(eq=False, slots=True)
class Engine:
    """prefilled: prompt tokens computed so far. reused: those that were cached."""

    running: list[Request] = field(default_factory=list)
    waiting: deque[Request] = field(default_factory=deque)
    cache: OrderedDict[int, int] = field(default_factory=OrderedDict)  # conversation to tokens, longest unused first
    prefilled: int = 0
    reused: int = 0
    retracted: int = 0
    _cached: int = 0

    def send(self, request: Request) -> None:
        self.waiting.append(request)

    @property
    def load(self) -> Load:
        used = sum(request.tokens for request in self.running)
        return Load(len(self.running), len(self.waiting), min(1.0, used / POOL), POOL)

    def advance(self, most: float) -> float:
        """Run iterations until something ends, at most about `most` seconds; return the seconds that passed."""
        self._admit()
        if not self.running:
            return most
        budget, prefilled = CHUNK, 0
        for request in self.running:
            part = min(budget, request.to_prefill)
            request.to_prefill -= part
            budget -= part
            prefilled += part
        decoding = [request for request in self.running if not request.to_prefill]
        self.prefilled += prefilled
        read = sum(request.tokens for request in decoding)
        one = ITERATION + DECODE * len(decoding) + READ * read
        times = 1
        if not prefilled and decoding:  # nothing changes but lengths until the first one ends
            times = max(1, min(min(request.output - request.made for request in decoding), int(most / one)))
        for request in decoding:
            request.made += times
        ended = [request for request in decoding if request.made >= request.output]
        for request in ended:
            self.running.remove(request)
            self._keep(request.conversation, request.tokens)
        self._shrink()
        for request in ended:
            request.done()
        return one * times + PREFILL * prefilled

    def _admit(self) -> None:
        """Take requests into the batch, in order, as far as the pool holds them and an iteration can begin them."""
        used = sum(request.prompt + request.made for request in self.running)
        budget = CHUNK - sum(request.to_prefill for request in self.running)
        while self.waiting and budget > 0:
            request = self.waiting[0]
            if self.running and used + request.prompt > POOL:
                return
            self.waiting.popleft()
            used += request.prompt
            kept = min(self.cache.pop(request.conversation, 0), request.prompt - 1)
            self._cached = sum(self.cache.values())
            self.reused += kept
            request.to_prefill, request.made = request.prompt - kept, 0
            budget -= request.to_prefill
            self.running.append(request)
            self._evict(POOL - used)

    def _keep(self, conversation: int, tokens: int) -> None:
        self.cache[conversation] = tokens
        self._cached += tokens

    def _evict(self, room: int) -> None:
        """Cut the cache to `room` tokens, from the ends of the conversations that were unused for longest."""
        while self._cached > room and self.cache:
            conversation, tokens = next(iter(self.cache.items()))
            cut = min(tokens, self._cached - max(0, room))
            self._cached -= cut
            if cut == tokens:
                del self.cache[conversation]
            else:
                self.cache[conversation] = tokens - cut
                return

    def _shrink(self) -> None:
        """Send the latest requests back while the running ones outgrow the pool; evict what they need."""
        used = sum(request.prompt + request.made for request in self.running)
        while used > POOL and len(self.running) > 1:
            request = self.running.pop()
            used -= request.prompt + request.made
            self.retracted += 1
            self.waiting.appendleft(request)
        self._evict(POOL - used)

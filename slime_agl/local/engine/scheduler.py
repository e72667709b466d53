"""Continuous batching: requests join and leave between decoding steps.

Single-threaded. A step admits waiting requests (each is prefilled alone, from the longest prefix that is stored
anywhere), then decodes one token for every running one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable

import torch

from slime_agl.errors import EngineError
from slime_agl.local.engine.backend import Finish
from slime_agl.local.engine.kv_slots import KVSlots, RowsView
from slime_agl.local.engine.model import LanguageModel
from slime_agl.local.engine.prefix_cache import PrefixCache, as_ids, common_prefix
from slime_agl.local.engine.sampler import choose, uniform
from slime_agl.local.engine.sequence import Sequence
from slime_agl.local.engine.stopping import finish_of

_PREFILL_CHUNK = 512
_ABORTED = Finish("abort", message="aborted on request")


class Scheduler:
    """Owner of the batch, the slots and the prefix cache.

    max_running: sequences per batch. kv_tokens: limit on the tokens of keys and values that running sequences may grow
    to, including padding; one sequence always fits. version: returns the weight version for answers.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        max_running: int,
        kv_tokens: int,
        prefix_tokens: int,
        seed: int,
        version: Callable[[], str],
    ) -> None:
        self._model = model
        self._max_running = max_running
        self._kv_tokens = kv_tokens
        self._slots = KVSlots(model.kv_shape)
        self._prefixes = PrefixCache(prefix_tokens)
        self._random = random.Random(seed)
        self._version = version
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def step(self, *, admit: bool = True) -> None:
        """Admit the sequences that fit, then decode one token for every running one."""
        while admit and self.waiting and self._fits(self.waiting[0]):
            self._join(self.waiting[0])
        if self.running:
            self._decode()
        else:
            self._slots.release()

    def abort(self, rid: str | None) -> None:
        """End sequence `rid`, or all, with their partial output."""
        for sequence in [s for s in self.waiting if rid in (None, s.request.rid)]:
            self.waiting.remove(sequence)
            sequence.report(_ABORTED, self._version(), self._model.tokenizer)
        self._leave({s: _ABORTED for s in self.running if rid in (None, s.request.rid)})

    def fail(self, error: EngineError) -> None:
        """End everything with an error. The prefix cache is dropped too, as it can no longer be trusted."""
        for sequence in (*self.running, *self.waiting):
            sequence.fail(error)
        self.running.clear()
        self.waiting.clear()
        self._prefixes.clear()
        self._slots.release()

    def retract(self) -> None:
        """Put running sequences back at the head of the queue, keeping their sampled tokens."""
        self.waiting.extendleft(reversed(self.running))
        self._vacate(self.running)

    def forget_prefixes(self) -> None:
        """Drop the prefix cache, and never store what runs now: its weights were replaced or the cache was flushed."""
        self._prefixes.clear()
        for sequence in self.running:
            sequence.fresh = False

    def _fits(self, sequence: Sequence) -> bool:
        if not self.running:
            return True
        longest = max(s.longest for s in (*self.running, sequence))
        rows = len(self.running) + 1
        return rows <= self._max_running and rows * longest <= self._kv_tokens

    def _join(self, sequence: Sequence) -> None:
        """Prefill the head of the queue and draw its first token. It leaves the queue last, so `fail` can find it."""
        first = sequence.request.score_from
        if first is not None and sequence.scores is None:
            sequence.scores = self._model.prompt_logprobs(list(sequence.request.input_ids), first)
        if not sequence.request.sampling.max_new_tokens:
            self.waiting.popleft()
            sequence.report(Finish("length"), self._version(), self._model.tokenizer)
            return
        row = len(self.running)
        self._slots.ensure(row + 1, len(sequence.ids))
        start = self._restore(sequence, row)
        if sequence.cached is None:
            sequence.cached = min(start, len(sequence.request.input_ids))
        logits = torch.empty(0)  # the last token is always computed
        for begin in range(start, len(sequence.ids), _PREFILL_CHUNK):
            chunk = sequence.ids[begin : begin + _PREFILL_CHUNK]
            positions = torch.arange(begin, begin + len(chunk))[None]
            logits = self._model.forward([chunk], RowsView(self._slots, row, positions), positions)
        sequence.stored, sequence.fresh = len(sequence.ids), True
        self.running.append(self.waiting.popleft())
        self._append([sequence], logits)

    def _restore(self, sequence: Sequence, row: int) -> int:
        """Fill the row with the longest known prefix; return its length. The last token is always computed."""
        wanted = as_ids(sequence.ids[:-1])
        length, stored = self._prefixes.longest(wanted)
        shared = [common_prefix(wanted, as_ids(s.ids[: s.stored])) if s.fresh else 0 for s in self.running]
        source = max(range(len(shared)), key=shared.__getitem__, default=None)
        if source is not None and shared[source] > length:
            self._slots.copy_row(source, row, shared[source])
            return shared[source]
        if length:
            self._slots.write(row, stored, length)
        return length

    def _decode(self) -> None:
        self._slots.ensure(len(self.running), max(s.stored for s in self.running) + 1)
        positions = torch.tensor([[s.stored] for s in self.running])
        tokens = [[s.ids[-1]] for s in self.running]
        logits = self._model.forward(tokens, RowsView(self._slots, 0, positions), positions)
        for sequence in self.running:
            sequence.stored += 1
        self._append(list(self.running), logits)

    def _append(self, sequences: list[Sequence], logits: torch.Tensor) -> None:
        """Draw the next token of each sequence from its row of `logits`; remove the finished ones."""
        finished: dict[Sequence, Finish] = {}
        for sequence, row in zip(sequences, logits, strict=True):
            self._draw(sequence, row)
            params = sequence.request.sampling
            finish = finish_of(sequence.output, params, self._model.eos_ids, self._model.tokenizer)
            if finish is not None:
                finished[sequence] = finish
            elif sequence.request.stream:
                sequence.report(None, self._version(), self._model.tokenizer)
        self._leave(finished)

    def _draw(self, sequence: Sequence, logits: torch.Tensor) -> None:
        params = sequence.request.sampling
        seed = params.sampling_seed
        number = self._random.random() if seed is None else uniform(seed, len(sequence.ids))
        early = len(sequence.logprobs) < params.min_new_tokens
        stops = self._model.eos_ids.union(params.stop_token_ids) if early else ()
        forbidden = [token for token in stops if 0 <= token < len(logits)]
        token, logprob = choose(logits, params, number, seen=sequence.ids, forbidden=forbidden)
        sequence.ids.append(token)
        sequence.logprobs.append(logprob)

    def _leave(self, finished: dict[Sequence, Finish]) -> None:
        self._vacate(finished)
        for sequence, finish in finished.items():
            sequence.report(finish, self._version(), self._model.tokenizer)

    def _vacate(self, leaving: Iterable[Sequence]) -> None:
        """Remove sequences from the batch: store their prefixes, fill the gaps with the last rows."""
        for sequence in list(leaving):
            row, last = self.running.index(sequence), len(self.running) - 1
            known = sequence.ids[: sequence.stored]
            if sequence.fresh and self._prefixes.worth_storing(known):
                self._prefixes.put(known, self._slots.read(row, sequence.stored))
            if row != last:
                self._slots.copy_row(last, row, self.running[last].stored)
                self.running[row] = self.running[last]
            self.running.pop()
            sequence.stored = 0

"""A teacher for tests: an SGLang server that scores prompts by a rule, and wrongly if told to.

>>> with FakeTeacher() as teacher:
...     config = {"teacher": teacher.url}
...     assert sample.teacher_log_probs == teacher.scores(sample.tokens, sample.response_length)
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from slime_agl.local.engine.backend import GenerateRequest
from slime_agl.local.engine.scripted import ScriptedBackend, ScriptedReply
from slime_agl.local.engine.server import EngineThread
from slime_agl.testing.tokenizer import tiny_tokenizer

Entries = list[list[Any]]


class FakeTeacher:
    """A context manager. Its logprob of a token depends on the token and on all before it, in [-10, 0).

    tokenizer: encodes text, `tiny_tokenizer()` by default. salt: two teachers of different salt score differently.
    spoil: changes the [logprob, id, text] entries of an answer before it is sent; can be set at any time. fails: HTTP
    statuses of the next answers. requests: all that arrived, in order.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | None = None, *, salt: int = 0, context_length: int = 32768
    ) -> None:
        self._tokenizer = tokenizer or tiny_tokenizer()
        self._salt = salt
        self.spoil: Callable[[Entries], Entries] | None = None
        self.fails: list[int] = []
        self.requests: list[GenerateRequest] = []
        self._server = EngineThread(
            ScriptedBackend(self._reply, text=self, vocab_size=1 << 20, context_length=context_length)
        )

    def __enter__(self) -> FakeTeacher:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def scored(self) -> list[tuple[int, ...]]:
        """The ids of all prompts that were scored and nothing sampled from, texts included."""
        return [one.input_ids for one in self.requests if one.score_from is not None]

    def scores(self, ids: Sequence[int], count: int) -> list[float]:
        """Log p of the last `count` of `ids`."""
        return [self._logprob(ids[: at + 1]) for at in range(len(ids) - count, len(ids))]

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def _logprob(self, ids: Sequence[int]) -> float:
        return -(1 + zlib.crc32(array("q", ids).tobytes(), self._salt) % 999) / 100

    def _reply(self, request: GenerateRequest) -> ScriptedReply:
        self.requests.append(request)
        if self.fails:
            return ScriptedReply(status=self.fails.pop(0))
        ids = list(request.input_ids)
        if request.score_from is None:
            new = [zlib.crc32(bytes([at])) % 50 for at in range(request.sampling.max_new_tokens)]
            return ScriptedReply(new, finish="length", logprobs=self.scores([*ids, *new], len(new)))
        first = request.score_from
        entries: Entries = [[None, ids[first], None]]
        entries += [[self._logprob(ids[: at + 1]), ids[at], None] for at in range(first + 1, len(ids))]
        return ScriptedReply(
            finish="length", meta={"input_token_logprobs": self.spoil(entries) if self.spoil else entries}
        )

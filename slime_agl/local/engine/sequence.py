"""A request in the queue or the batch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from slime_agl.errors import EngineError
from slime_agl.local.engine.backend import Deliver, Finish, Generated, GenerateRequest
from slime_agl.local.engine.stopping import Decoder, text_of


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the scheduler's thread.

    ids: prompt and output. stored: number of ids whose keys and values are in the sequence's row.
    cached: prompt tokens reused at the first prefill, None before it.
    fresh: all keys and values come from the current weights. scores: log p of the prompt's tokens from
    `request.score_from` on.
    """

    request: GenerateRequest
    deliver: Deliver
    _: KW_ONLY
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stored: int = 0
    cached: int | None = None
    fresh: bool = True
    scores: list[float | None] | None = None

    def __post_init__(self) -> None:
        self.ids = list(self.request.input_ids)

    @property
    def output(self) -> list[int]:
        return self.ids[len(self.request.input_ids) :]

    @property
    def longest(self) -> int:
        """Maximum number of tokens, prompt and output."""
        return len(self.request.input_ids) + self.request.sampling.max_new_tokens

    def report(self, finish: Finish | None, weight_version: str, decoder: Decoder) -> None:
        """Deliver the output so far."""
        output = self.output
        self.deliver(
            Generated(
                output_ids=tuple(output),
                logprobs=tuple(self.logprobs),
                text=text_of(output, self.request.sampling, finish, decoder),
                prompt_tokens=len(self.request.input_ids),
                weight_version=weight_version,
                finish=finish,
                cached_tokens=self.cached or 0,
                meta=self._scored(),
            )
        )

    def _scored(self) -> dict[str, object]:
        if self.scores is None:
            return {}
        scored = self.request.input_ids[self.request.score_from :]
        pairs = zip(self.scores, scored, strict=True)
        return {"input_token_logprobs": [[logprob, token, None] for logprob, token in pairs]}

    def fail(self, error: EngineError) -> None:
        self.deliver(error)

"""A teacher on this machine: its model behind a server of its own, and its scores computed a second time."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from slime_agl import host
from slime_agl.errors import InvariantError
from slime_agl.local.engine.model import load_model_and_tokenizer
from slime_agl.local.engine.score import teacher_logprobs_batch
from slime_agl.local.engine.server import EngineThread
from slime_agl.local.engine.smollm2 import resolve_model
from slime_agl.local.engine.transformers_backend import TransformersBackend

TOLERANCE = 1e-4


class Desk:
    """Context manager: serves a checkpoint as a teacher."""

    def __init__(self, checkpoint: str) -> None:
        path = resolve_model(checkpoint)
        self._model, tokenizer = load_model_and_tokenizer(path, "float32")
        self._server = EngineThread(TransformersBackend(self._model, tokenizer, model_path=str(path)))

    def __enter__(self) -> Desk:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.stop()

    @property
    def url(self) -> str:
        return self._server.url

    def check(self, samples: Sequence[host.Sample]) -> float:
        """Score the Samples by teacher forcing; return the largest |difference| from their teacher_log_probs.

        Raises:
            InvariantError: it exceeds TOLERANCE, or a Sample has no scores.
        """
        scored = [sample for sample in samples if not sample.remove_sample]
        worst = 0.0
        sequences = [(sample.tokens, sample.response_length) for sample in scored]
        for sample, again in zip(scored, teacher_logprobs_batch(self._model, sequences, batch_size=64), strict=True):
            given = sample.teacher_log_probs
            if given is None or len(given) != len(again):
                raise InvariantError(
                    f"sample {sample.index} has {len(given or ())} teacher_log_probs, its response has {len(again)} "
                    "tokens"
                )
            gaps = [abs(one - other) for one, other in zip(given, again, strict=True)]
            if not max(gaps) <= TOLERANCE:
                at = max(range(len(gaps)), key=gaps.__getitem__)
                raise InvariantError(
                    f"token {at} of sample {sample.index} has logprob {given[at]:.5f} from the teacher, and "
                    f"{again[at]:.5f} by teacher forcing; {TOLERANCE:.1e} is allowed between them"
                )
            worst = max(worst, *gaps)
        return worst

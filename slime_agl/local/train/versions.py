"""The weights of recent versions, to check logprobs that older weights sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from slime_agl.errors import InvariantError
from slime_agl.local.engine.score import teacher_logprobs_batch

Publish = Callable[[dict[str, torch.Tensor], str], None]


class Versions:
    """Keeps what is published, and scores each token under the weights of the version that it names.

    model: of the published weights' shape; it is overwritten. kept: number of versions. tolerance: largest allowed
    difference between a rollout's logprob and its score.
    """

    def __init__(self, model: PreTrainedModel, publish: Publish, *, kept: int, tolerance: float = 1e-4) -> None:
        self._model, self._publish, self._kept, self._tolerance = model, publish, kept, tolerance
        self._states: dict[str, dict[str, torch.Tensor]] = {}

    def publish(self, state: dict[str, torch.Tensor], version: str) -> None:
        """Keep a copy of the weights and pass them on."""
        while len(self._states) >= self._kept:
            del self._states[next(iter(self._states))]
        self._states[version] = {name: tensor.clone() for name, tensor in state.items()}
        self._publish(state, version)

    def check(self, samples: Sequence[Any], temperature: float) -> float:
        """Return the largest |difference| over all trained tokens.

        Raises:
            InvariantError: it exceeds the tolerance, a trained token names no version, or one that is too old.
        """
        trained = [sample for sample in samples if not sample.remove_sample]
        worst = 0.0
        by_version: dict[str, list[tuple[Any, int, int]]] = {}
        for sample in trained:
            spans = sample.metadata["agl"]["weight_versions"]
            covered = sum(sum(sample.loss_mask[start:end]) for start, end, _ in spans)
            if covered != sum(sample.loss_mask):
                raise InvariantError(
                    f"sample {sample.index}: {sum(sample.loss_mask)} tokens train, {covered} name a version of weights"
                )
            for start, end, version in spans:
                by_version.setdefault(version, []).append((sample, start, end))
        for version, places in by_version.items():
            if version not in self._states:
                raise InvariantError(
                    f"sample {places[0][0].index} was sampled by weights of version {version}; kept are "
                    f"{', '.join(self._states)}"
                )
            worst = max(worst, self._check_version(version, places, temperature))
        return worst

    def _check_version(self, version: str, places: Sequence[tuple[Any, int, int]], temperature: float) -> float:
        self._model.load_state_dict(self._states[version])
        sequences = [(sample.tokens, sample.response_length) for sample, _, _ in places]
        worst = 0.0
        scores = teacher_logprobs_batch(self._model, sequences, temperature, batch_size=64)
        for (sample, start, end), score in zip(places, scores, strict=True):
            for at in range(start, end):
                gap = abs(score[at] - sample.rollout_log_probs[at]) if sample.loss_mask[at] else 0.0
                if not gap <= self._tolerance:
                    raise InvariantError(
                        f"token {at} of sample {sample.index} has logprob {sample.rollout_log_probs[at]:.5f} from the "
                        f"rollout, and {score[at]:.5f} under the weights of version {version} that it names; "
                        f"{self._tolerance:.1e} is allowed between them"
                    )
                worst = max(worst, gap)
        return worst

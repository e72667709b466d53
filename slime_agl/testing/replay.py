"""Replay data of the scripted server: a function of position and token, so that misplaced data is always detected."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from slime_agl.host import Sample


@dataclass(frozen=True, slots=True)
class FakeReplay:
    """The replay data of an engine of slime's image that was started with routed experts enabled.

    layers, choices: `--num-layers` and `--moe-router-topk` of the simulated model. start_len: support
    `routed_experts_start_len`; otherwise every answer has rows for the whole sequence.
    """

    layers: int = 3
    choices: int = 2
    start_len: bool = True

    def experts(self, position: int, token: int) -> list[int]:
        """Return the row of an input token: layers times choices expert ids below 60."""
        return [(token * 7 + position * 13 + at * 5) % 60 for at in range(self.layers * self.choices)]

    def kept(self, position: int, token: int) -> list[int]:
        """Return the set that a token was sampled from: itself and up to two others."""
        return [token, *((token + position + at) % 251 for at in range((token + position) % 3))]

    def meta(self, body: Mapping, prompt: Sequence[int], ids: Sequence[int]) -> dict[str, object]:
        """Return the replay fields of `meta_info` for the answer `ids` to the request `body`, encoded as in SGLang."""
        params = body.get("sampling_params") or {}
        meta = {}
        if body.get("return_routed_experts"):
            start = body.get("routed_experts_start_len", 0) if self.start_len else 0
            inputs = [*prompt, *ids][:-1]
            rows = [self.experts(at, token) for at, token in enumerate(inputs)]
            meta["routed_experts"] = _base64(expert for row in rows[start:] for expert in row)
        asked = (params.get("custom_params") or {}).get("return_top_p_token_ids")
        if asked and params.get("top_p", 1.0) != 1.0 and ids:
            sets = [self.kept(len(prompt) + at, token) for at, token in enumerate(ids)]
            meta["top_p_token_ids"] = _base64(token for kept in sets for token in kept)
            meta["top_p_token_offsets"] = _base64([0, *np.cumsum([len(kept) for kept in sets])])
        return meta

    def faults(self, sample: Sample, *, experts: bool = True, top_p: bool = True) -> list[str]:
        """List the differences between a Sample's replay data and this engine's; empty if there are none."""
        found = []
        if experts:
            given = [self.experts(at, token) for at, token in enumerate(sample.tokens[:-1])]
            want = np.asarray(given, dtype=np.int32).reshape(-1, self.layers, self.choices)
            if not np.array_equal(np.asarray(sample.rollout_routed_experts), want):
                found.append(
                    f"routed experts of sample {sample.index} are not those of its {len(sample.tokens)} tokens"
                )
        if top_p:
            ids, offsets = sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets
            if ids is None or offsets is None:
                return [*found, f"sample {sample.index} has no top-p sets"]
            start = len(sample.tokens) - sample.response_length
            for at, trained in enumerate(sample.loss_mask or ()):
                want = self.kept(start + at, sample.tokens[start + at]) if trained else []
                if [int(i) for i in ids[int(offsets[at]) : int(offsets[at + 1])]] != want:
                    found.append(f"top-p set of response token {at} of sample {sample.index} is not that token's")
        return found


def _base64(values: Iterable[int]) -> str:
    return base64.b64encode(np.fromiter(values, dtype="<i4").tobytes()).decode()

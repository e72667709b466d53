"""Build slime's Samples from the segments of an execution."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from slime_agl.chat.template.renderer import Renderer
from slime_agl.credit.turns import KEY, TurnCredit
from slime_agl.errors import InvariantError
from slime_agl.execution import Execution
from slime_agl.executor.entry import response_of
from slime_agl.executor.replay import check_replay, experts_meta, placeholder_meta, top_p_meta
from slime_agl.executor.timeline import add_timeline
from slime_agl.host import RolloutArgs, Sample, join_tensors
from slime_agl.reward import ShapedReward
from slime_agl.trace.segments import Segment
from slime_agl.trace.turn import Sampled


class SampleBuilder:
    """Builds Samples with slime's own bookkeeping (`Sample.append_response_tokens`)."""

    def __init__(self, args: RolloutArgs, renderer: Renderer) -> None:
        self._args, self._renderer = args, renderer

    def build(self, source: Sample, execution: Execution, number: int) -> list[Sample]:
        """One Sample per segment, all with rollout_id `number`; empty if nothing may train.

        Raises:
            InvariantError: a Sample differs from what the engine received and answered.
        """
        samples = []
        for at, segment in enumerate(execution.segments):
            sample = self._blank(source, execution, number, at)
            self._fill(sample, segment)
            if segment.turns[-1].index in execution.ledger.full and sample.status == Sample.Status.COMPLETED:
                sample.status = Sample.Status.TRUNCATED
            sample.metadata["agl"]["weight_versions"] = response_of(segment)[1]
            self._attach_images(sample, segment)
            add_timeline(sample, segment)
            check_sample(sample, segment)
            check_replay(sample, segment)
            samples.append(sample)
        return samples

    def placeholder(self, source: Sample, execution: Execution, number: int, reward: ShapedReward) -> Sample:
        """A stand-in for an execution without usable tokens: a Sample with one masked token."""
        sample = self._blank(source, execution, number, 0)
        filler = min(self._renderer.stop_ids, default=0)
        sample.tokens = [filler]
        meta = placeholder_meta(self._args, filler)
        sample.append_response_tokens(self._args.raw, tokens=[filler], log_probs=[0.0], meta_info=meta)
        return self.mask([sample], reward)[0]

    def mask(self, samples: Sequence[Sample], reward: ShapedReward) -> list[Sample]:
        """Remove the samples of a failed execution from training; they keep their tokens for inspection."""
        for sample in samples:
            sample.loss_mask = [0] * sample.response_length
            sample.remove_sample = True
            sample.status = Sample.Status.FAILED
            sample.reward = reward
        return list(samples)

    def _blank(self, source: Sample, execution: Execution, number: int, at: int) -> Sample:
        sample = copy.deepcopy(source)
        sample.rollout_id = number
        sample.tokens, sample.response, sample.response_length = [], "", 0
        sample.loss_mask = sample.rollout_log_probs = None
        sample.weight_versions = []
        sample.multimodal_inputs = sample.multimodal_train_inputs = None
        sample.non_generation_time = max(0.0, execution.seconds - execution.engine_seconds)
        sample.metadata = {**(sample.metadata or {}), "agl": _provenance(execution, at)}
        return sample

    def _fill(self, sample: Sample, segment: Segment) -> None:
        args = self._args.raw
        sample.tokens = list(segment.prompt_ids())
        first = segment.first_trained
        for at, turn in enumerate(segment.turns[first:], first):
            if at > first:
                sample.append_response_tokens(args, tokens=turn.new_ids, trainable=False)
            for part in turn.parts:
                if turn.index in segment.trained:
                    last = part is segment.turns[-1].parts[-1]
                    meta = _meta_info(part) | (experts_meta(segment) if last else {})
                    sample.append_response_tokens(
                        args, tokens=part.ids, log_probs=part.logprobs, trainable=True, meta_info=meta
                    )
                else:
                    sample.append_response_tokens(args, tokens=part.ids, trainable=False)
        response = sample.tokens[len(sample.tokens) - sample.response_length :]
        sample.response = self._renderer.decode(response, skip_special_tokens=self._args.rollout_skip_special_tokens)

    def _attach_images(self, sample: Sample, segment: Segment) -> None:
        """Attach the images among the sample's tokens as slime stores them: opened, and as the model's tensors."""
        media = [turn.media for turn in segment.turns if turn.media is not None]
        if media:
            vision = self._renderer.vision
            sample.multimodal_inputs = {"images": [image for one in media for image in vision.pictures(one)]}
            sample.multimodal_train_inputs = join_tensors([vision.train_inputs(one) for one in media])


def give_credit(sample: Sample, turns: Sequence[TurnCredit]) -> None:
    """Note the credit of its turns in a Sample's metadata, for `normalize_rewards`.

    Raises:
        InvariantError: a turn's tokens are not all trained ones of the response.
    """
    for turn in turns:
        if not all((sample.loss_mask or [])[turn.start : turn.end]) or turn.end > sample.response_length:
            raise InvariantError(
                f"a turn has credit for tokens {turn.start} to {turn.end}, which do not all train in a response of "
                f"{sample.response_length} tokens"
            )
    if turns:
        sample.metadata["agl"][KEY] = [turn.packed() for turn in turns]


def check_sample(sample: Sample, segment: Segment) -> None:
    """Compare a finished Sample with its segment.

    Raises:
        InvariantError: ids, mask or logprobs differ from what the engine received and answered.
    """
    where = f"rollout {segment.rollout_id}, turns {[turn.index for turn in segment.turns]}"
    ids: list[int] = []
    logprobs: list[float] = []
    mask: list[int] = []
    for turn in segment.turns:
        trained = turn.index in segment.trained
        output = turn.output_ids()
        ids += turn.new_ids
        ids += output
        mask += [0] * len(turn.new_ids) + [int(trained)] * len(output)
        logprobs += [0.0] * len(turn.new_ids)
        logprobs += turn.output_logprobs() if trained else [0.0] * len(output)
    start = len(ids) - sample.response_length
    if sample.tokens != ids:
        at = next(
            (i for i, pair in enumerate(zip(sample.tokens, ids, strict=False)) if pair[0] != pair[1]),
            min(len(ids), len(sample.tokens)),
        )
        raise InvariantError(
            f"sample has {len(sample.tokens)} tokens, the engine saw {len(ids)}; they differ at {at} ({where})"
        )
    for name, mine, expected in (
        ("loss_mask", sample.loss_mask, mask),
        ("rollout_log_probs", sample.rollout_log_probs, logprobs),
    ):
        if mine != expected[start:]:
            raise InvariantError(
                f"{name} has {len(mine or ())} entries for a response of {sample.response_length} tokens, "
                f"or differs from the engine's answer ({where})"
            )
    if any(mask[:start]):
        raise InvariantError(f"{sum(mask[:start])} trained tokens stand in the prompt of the sample ({where})")


def _meta_info(part: Sampled) -> dict[str, object]:
    """The part of SGLang's meta_info that `append_response_tokens` reads; no weight version if nothing was sampled."""
    info: dict[str, object] = {**part.meta, **top_p_meta(part)}
    info["finish_reason"] = {"type": part.finish}
    info["prompt_tokens"] = part.prompt_tokens
    info["cached_tokens"] = part.cached_tokens
    info["completion_tokens"] = len(part.ids)
    info.pop("weight_version", None)
    if part.weight_version and len(part.ids):
        info["weight_version"] = part.weight_version
    return info


def _provenance(execution: Execution, at: int) -> dict[str, object]:
    return {
        "rollout_id": execution.rollout_id,
        "attempt_id": execution.attempt_id,
        "turns": len(execution.ledger.turns),
        "segments": len(execution.segments),
        "segment": at,
        "failure": execution.failure,
    }

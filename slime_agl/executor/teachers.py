"""Teachers of an on-policy distillation: they score the tokens of every training Sample, for slime's --use-opd.

From the advantage of each trained token slime's trainer subtracts `--opd-kl-coef` times the reverse KL divergence, the
policy's logprob minus the teacher's. It takes the teacher's from `Sample.teacher_log_probs`: one per token of the
response, for all Samples of a step or for none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config
from slime_agl.config.teacher import is_url, teachers
from slime_agl.credit.per_agent import agent_of
from slime_agl.engine.scorer import Probe, Scorer
from slime_agl.errors import ConfigError, TeacherError, closest
from slime_agl.execution import Execution
from slime_agl.host import RolloutArgs, Sample, source_of
from slime_agl.loops import ended
from slime_agl.runtime import Runtime

# Words, digits, code and letters of several scripts: tokenizers differ in how they cut these.
PROBE_TEXT = "The 3 quick brown foxes (2.718) jump: def f(x):\n\treturn x**2  # naïve café, 你好, Привет\n"


class Teachers:
    """The teachers of `agl.teacher`; each is proven before its first score. Belongs to the runtime's loop."""

    def __init__(self, config: Config, args: RolloutArgs, renderer: Renderer) -> None:
        urls = teacher_urls(config, args)
        scorers = {url: Scorer(url, name=name, seconds=config.teacher_seconds) for name, url in urls.items()}
        self._scorers = {whom: scorers[url] for whom, url in urls.items()}
        self._probe = probe_of(renderer, args.rollout_max_context_len)
        self._proofs: dict[Scorer, asyncio.Task[None]] = {}

    @classmethod
    def of(cls, runtime: Runtime, args: RolloutArgs) -> Teachers | None:
        """Return the runtime's own; None without `agl.teacher`."""
        if runtime.config.teacher is None:
            return None
        return runtime.keep(cls, lambda: cls(runtime.config, args, runtime.renderer))

    async def prove(self) -> None:
        """Prove all teachers that are not yet; see `Scorer.prove`. Raises TeacherError."""
        await asyncio.gather(*(self._proven(scorer) for scorer in set(self._scorers.values())))

    async def fill(self, samples: Sequence[Sample], execution: Execution) -> None:
        """Set `teacher_log_probs` of the Samples of an execution.

        Those removed from training get zeros, which nothing reads, and cost the teacher nothing.

        Raises:
            ConfigError: no teacher is named for a Sample's agent or source.
            TeacherError: the teacher does not answer, or wrongly.
        """
        tasks = [asyncio.ensure_future(self._fill(sample, execution)) for sample in samples]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            await ended(tasks)
            raise

    async def close(self) -> None:
        await ended(list(self._proofs.values()))
        for scorer in set(self._scorers.values()):
            await scorer.close()

    async def _fill(self, sample: Sample, execution: Execution) -> None:
        if sample.remove_sample:
            sample.teacher_log_probs = [0.0] * sample.response_length
            return
        if (sample.multimodal_inputs or {}).get("images"):
            raise TeacherError(
                f"sample {sample.index} has images, and teachers are sent token ids only; leave agl.teacher out for "
                "such data"
            )
        scorer = self._scorer(sample, execution)
        began = time.monotonic()
        await self._proven(scorer)
        scores = await scorer.score(sample.tokens, sample.response_length)
        sample.teacher_log_probs = scores.tolist()
        (sample.metadata or {}).setdefault("agl", {})["teacher_seconds"] = time.monotonic() - began

    async def _proven(self, scorer: Scorer) -> None:
        """Wait for the one proof of a teacher; one that failed is tried again by the next that needs it."""
        proof = self._proofs.get(scorer)
        if proof is None or (proof.done() and (proof.cancelled() or proof.exception() is not None)):
            proof = self._proofs[scorer] = asyncio.ensure_future(scorer.prove(self._probe))
        await asyncio.shield(proof)

    def _scorer(self, sample: Sample, execution: Execution) -> Scorer:
        if "" in self._scorers:
            return self._scorers[""]
        at = ((sample.metadata or {}).get("agl") or {}).get("segment", 0)
        agent = agent_of(execution.segments[at]) if at < len(execution.segments) else ""
        source = source_of(sample)
        found = next((self._scorers[name] for name in (agent, source) if name in self._scorers), None)
        if found is None:
            known = ", ".join(self._scorers)
            raise ConfigError(
                f"agl.teacher names teachers for {known}, and sample {sample.index} is of agent {agent!r} and source "
                f"{source!r}; add one of them.{closest(agent, self._scorers) or closest(source, self._scorers)}"
            )
        return found


def teacher_urls(config: Config, args: RolloutArgs) -> dict[str, str]:
    """The URL of each teacher, by the agent or source that it teaches; '' is everybody.

    Raises:
        ConfigError: a name is not that of a frozen model.
    """
    frozen = {name: url.removesuffix("/v1") for name, url in args.frozen_models.items()}
    urls = {}
    for whom, teacher in teachers(config.teacher).items():
        if not is_url(teacher) and teacher not in frozen:
            names = ", ".join(frozen) or "none"
            raise ConfigError(
                f"agl.teacher{whom and f'.{whom}'} is {teacher!r}, which is neither a URL nor a frozen model of "
                f"--sglang-config (frozen: {names}); a model that is trained cannot be its own teacher."
                f"{closest(teacher, frozen)}"
            )
        urls[whom] = teacher if is_url(teacher) else frozen[teacher]
    return urls


def probe_of(renderer: Renderer, context: int | None) -> Probe:
    """A text with the tokens that end turns among its words, and the policy's ids of it."""
    text = f"{PROBE_TEXT}{''.join(renderer.stop_tokens)}"
    return Probe(text=text, ids=tuple(renderer.encode(text)), context=context)


def teaching(samples: Iterable[Sample]) -> dict[str, float]:
    """Metrics of a step: mean reverse KL per trained token, number of these, and mean seconds per scored Sample."""
    total, tokens, seconds = 0.0, 0, []
    for sample in samples:
        rows = zip(sample.loss_mask or (), sample.rollout_log_probs or (), sample.teacher_log_probs or (), strict=False)
        for trains, mine, teachers_own in rows:
            if trains:
                total, tokens = total + mine - teachers_own, tokens + 1
        took = ((sample.metadata or {}).get("agl") or {}).get("teacher_seconds")
        seconds += [] if took is None else [took]
    found = {"teacher/tokens": float(tokens)}
    if tokens:
        found["teacher/reverse_kl"] = total / tokens
    if seconds:
        found["teacher/seconds_per_sample"] = sum(seconds) / len(seconds)
    return found

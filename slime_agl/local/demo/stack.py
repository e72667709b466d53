"""An engine behind a real sglang-router, as slime would start them, on one machine without a GPU."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import torch
from transformers import PreTrainedModel

from slime_agl import host
from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.chat.template.renderer import Renderer
from slime_agl.errors import ConfigError
from slime_agl.local.demo.lasting import LastingBook
from slime_agl.local.demo.witness import Witness
from slime_agl.local.engine.backend import Backend, GenerateRequest
from slime_agl.local.engine.model import load_model_and_tokenizer, use_threads
from slime_agl.local.engine.router import start_router
from slime_agl.local.engine.score import teacher_logprobs_batch
from slime_agl.local.engine.scripted import ScriptedBackend, ScriptedReply
from slime_agl.local.engine.server import EngineThread
from slime_agl.local.engine.smollm2 import resolve_model
from slime_agl.local.engine.transformers_backend import TransformersBackend
from slime_agl.lru import LRU
from slime_agl.trace.invariants import check_against

# Attempts whose place among fixed answers is kept.
ATTEMPTS = 4096
# Tokens of a conversation with fixed answers: the prompts of coding programs alone have tens of thousands.
SCRIPTED_CONTEXT = 200_000


class LocalStack:
    """Context manager: loads a model, serves it behind the router, and checks Samples against it.

    model: 'smollm2' or a Hugging Face directory. max_running: requests per batch. seed: of the engine's sampling.
    says: fixed answers instead of sampling, which each attempt at an execution gets in turn and repeated; the weights
    are then not loaded. play: makes the answer to a prompt, in place of `says`. lasting: what `check` is given may have
    been sampled before its last call. All ports are free ones.

    Raises (on entering):
        ConfigError: the model, or a package of the extra `local`, is missing.
        EngineUnavailable: the router did not become ready; the message has the end of its log.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        max_running: int = 16,
        seed: int = 0,
        says: Sequence[str] = (),
        play: Callable[[str], str] | None = None,
        lasting: bool = False,
    ) -> None:
        self._name, self._max_running, self._seed, self._says, self._play = model, max_running, seed, says, play
        self._model: PreTrainedModel | None = None
        self._sampler: TransformersBackend | None = None
        self._book = LastingBook() if lasting else None
        self._stack = ExitStack()

    def __enter__(self) -> LocalStack:
        self.checkpoint: Path = resolve_model(self._name)
        self.witness = Witness(self._scripted() if self._says or self._play else self._loaded())
        with self._stack:
            self._engine = self._stack.enter_context(EngineThread(self.witness))
            self._router = self._stack.enter_context(start_router([self._engine.url]))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _loaded(self) -> Backend:
        use_threads(None)
        self._model, tokenizer = load_model_and_tokenizer(self.checkpoint, "float32")
        self._sampler = TransformersBackend(
            self._model, tokenizer, model_path=str(self.checkpoint), max_running=self._max_running, seed=self._seed
        )
        return self._sampler

    def _scripted(self) -> Backend:
        renderer = Renderer(load_tokenizer(str(self.checkpoint)))
        end = min(renderer.marker_ids)
        replies = [ScriptedReply((*renderer.encode(text), end)) for text in self._says]
        turns: LRU[str, Iterator[ScriptedReply]] = LRU(ATTEMPTS)

        def answer(request: GenerateRequest) -> ScriptedReply:
            if self._play is not None:
                return ScriptedReply((*renderer.encode(self._play(renderer.decode(request.input_ids))), end))
            # The gateway numbers the requests of an attempt behind the last dash of their ids.
            attempt = request.rid.rpartition("-")[0]
            mine = turns.used(attempt)
            if mine is None:
                mine = turns[attempt] = itertools.cycle(replies)
            return next(mine)

        return ScriptedBackend(
            answer, text=renderer, context_length=SCRIPTED_CONTEXT, vocab_size=1 << 24, model_path=str(self.checkpoint)
        )

    @property
    def url(self) -> str:
        """Address of the router."""
        return self._router.url

    def args(self, **overrides: object) -> Namespace:
        """Return slime's arguments for this stack, with checkpoint and router set."""
        address = urlsplit(self.url)
        return host.default_args(
            hf_checkpoint=str(self.checkpoint),
            sglang_router_ip=address.hostname,
            sglang_router_port=address.port,
            **overrides,
        )

    @property
    def in_flight(self) -> int:
        """Requests that the engine has not finished."""
        load = self.witness.load()
        return load.running + load.waiting

    def publish(self, state: dict[str, torch.Tensor], weight_version: str) -> None:
        """Update the engine's weights as slime does: pause, flush the cache, load, resume.

        Raises:
            ConfigError: they do not fit the model, and the engine keeps the old ones; or it has no weights.
        """
        if self._sampler is None:
            raise ConfigError("the engine gives fixed answers and has no weights; leave out `says` to train a model")
        self.witness.pause("abort")
        try:
            self.witness.flush_cache()
            self._sampler.set_weights(state, weight_version)
        finally:
            self.witness.resume()

    def check(self, samples: Sequence[host.Sample]) -> int:
        """Compare Samples with the engine's own record since the last check; return the number of tokens checked.

        Raises:
            InvariantError: a Sample has tokens that the engine did not sample or was not sent.
        """
        if self._book is None:
            return check_against(self.witness.take(), samples)
        self._book.add(self.witness.take())
        return sum(self._book.check(sample) for sample in samples if not sample.remove_sample)

    def teacher_difference(self, samples: Sequence[host.Sample], temperature: float) -> float:
        """Return the largest |difference| between rollout logprobs and teacher forcing over all trained tokens.

        0.0 without trained tokens, or without loaded weights to compare with.
        """
        if self._model is None:
            return 0.0
        scored = [sample for sample in samples if not sample.remove_sample]
        sequences = [(sample.tokens, sample.response_length) for sample in scored]
        worst = 0.0
        for sample, teacher in zip(scored, teacher_logprobs_batch(self._model, sequences, temperature), strict=True):
            rows = zip(sample.loss_mask or (), sample.rollout_log_probs or (), teacher, strict=True)
            worst = max([worst, *(abs(mine - theirs) for mask, mine, theirs in rows if mask)])
        return worst

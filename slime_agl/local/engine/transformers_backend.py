"""A Backend that samples from a transformers model in one worker thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypedDict, TypeVar, Unpack

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slime_agl.errors import ConfigError, EngineError
from slime_agl.local.engine.backend import BackendInfo, Deliver, Finish, Generated, GenerateRequest, Load
from slime_agl.local.engine.base import BackendBase
from slime_agl.local.engine.model import DTYPES, LanguageModel, load_model, load_model_and_tokenizer
from slime_agl.local.engine.scheduler import Scheduler
from slime_agl.local.engine.sequence import Sequence
from slime_agl.local.engine.smollm2 import resolve_model

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Options(TypedDict, total=False):
    """Options of `load_backend`; see `TransformersBackend`."""

    context_length: int | None
    max_running: int
    prefix_tokens: int
    kv_tokens: int
    seed: int
    weight_version: str


class TransformersBackend(BackendBase):
    """Changes to the batch are commands that the worker thread runs between two steps, so there are no locks.

    model_path: for `/server_info`. context_length: at most the model's own.
    max_running: requests per batch. prefix_tokens: tokens cached for reuse (SmolLM2: 45 KiB each).
    kv_tokens: limit on the slots of running requests, including padding.
    seed: of the generator that requests without a seed share.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        model_path: str = "",
        context_length: int | None = None,
        max_running: int = 16,
        prefix_tokens: int = 16_384,
        kv_tokens: int = 65_536,
        seed: int = 0,
        weight_version: str = "default",
    ) -> None:
        self._model = LanguageModel(model, tokenizer)
        own = self._model.context_length
        if max_running < 1:
            raise ConfigError(f"max_running is {max_running}, it must be at least 1")
        if context_length is not None and not 2 <= context_length <= own:
            raise ConfigError(f"context_length is {context_length}, the model supports 2 to {own} tokens")
        super().__init__(
            BackendInfo(model_path, context_length or own, self._model.vocab_size, max_running), weight_version
        )
        self._scheduler = Scheduler(
            self._model,
            max_running=max_running,
            kv_tokens=kv_tokens,
            prefix_tokens=prefix_tokens,
            seed=seed,
            version=lambda: self._weight_version,
        )
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._updates: list[tuple[Future[None], dict[str, torch.Tensor], str]] = []
        self._in_flight: set[str] = set()
        self._paused = False
        self._closing = False
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="transformers-backend", daemon=True)

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._ask(self._end)
            self._thread.join()

    def encode(self, text: str) -> list[int]:
        return list(self._model.tokenizer(text).input_ids)

    def submit(self, request: GenerateRequest, deliver: Deliver) -> None:
        self._in_flight.add(request.rid)

        def counted(update: Generated | EngineError) -> None:
            if isinstance(update, EngineError) or update.finish is not None:
                self._in_flight.discard(request.rid)
            deliver(update)

        sequence = Sequence(request, counted)
        self._post(lambda: self._enqueue(sequence))

    def abort(self, rid: str | None) -> None:
        self._commands.put(lambda: self._scheduler.abort(rid))

    def pause(self, kind: str) -> None:
        self._ask(lambda: self._pause(kind))

    def resume(self) -> None:
        self._commands.put(self._resume)

    def flush_cache(self) -> bool:
        return self._ask(self._flush)

    def update_weights(self, path: str, weight_version: str) -> None:
        dtype = next(name for name, dtype in DTYPES.items() if dtype == self._model.model.dtype)
        self.set_weights(load_model(resolve_model(path), dtype).state_dict(), weight_version)

    def set_weights(self, state: dict[str, torch.Tensor], weight_version: str) -> None:
        """As `update_weights`, from tensors in this process. Returns once they are in use."""
        done: Future[None] = Future()
        self._post(lambda: self._enqueue_update(done, state, weight_version))
        done.result()

    def load(self) -> Load:
        running = len(self._scheduler.running)
        return Load(running, max(0, len(self._in_flight) - running))

    def _ask(self, command: Callable[[], T]) -> T:
        """Run a command on the worker thread and return its result."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(command())
            except Exception as error:  # boundary between threads: the caller gets what the command raised
                done.set_exception(error)

        self._post(run)
        return done.result()

    def _post(self, command: Callable[[], None]) -> None:
        """Queue a command that a caller waits for. Raises EngineError if the worker thread has ended."""
        if self._closed:
            raise EngineError("the engine is closed", status=503)
        self._commands.put(command)

    def _work(self) -> None:
        while not self._closing:
            self._run_commands()
            self._apply_updates()
            if self._paused or self._closing:
                continue
            try:
                self._scheduler.step(admit=not self._updates)
            except Exception as error:  # boundary of the model: every request in flight gets its failure
                logger.exception("decoding failed")
                self._scheduler.fail(EngineError(f"decoding failed: {type(error).__name__}: {error}", status=500))
        self._closed = True
        while not self._commands.empty():
            self._commands.get()()

    def _run_commands(self) -> None:
        """Run the queued commands; block for one if there is nothing to decode."""
        idle = not self._updates and (self._paused or not self._scheduler.busy)
        while idle or not self._commands.empty():
            self._commands.get()()
            idle = False

    def _apply_updates(self) -> None:
        if self._scheduler.running and not self._paused:
            return
        while self._updates:
            done, state, version = self._updates.pop(0)
            try:
                self._model.load_state(state)
            except Exception as error:  # boundary between threads: the caller gets it, the old weights stay
                done.set_exception(error)
                continue
            self._weight_version = version
            self._scheduler.forget_prefixes()
            done.set_result(None)

    def _enqueue(self, sequence: Sequence) -> None:
        if self._closing:
            sequence.report(
                Finish("abort", message="the engine is closing"), self._weight_version, self._model.tokenizer
            )
        else:
            self._scheduler.waiting.append(sequence)

    def _enqueue_update(self, done: Future[None], state: dict[str, torch.Tensor], version: str) -> None:
        if self._closing:
            done.set_exception(_closed_before(version))
        else:
            self._updates.append((done, state, version))

    def _pause(self, kind: str) -> None:
        self._paused = True
        if kind == "abort":
            self._scheduler.abort(None)
        elif kind == "retract":
            self._scheduler.retract()

    def _resume(self) -> None:
        self._paused = False

    def _flush(self) -> bool:
        if self._scheduler.running:
            return False
        self._scheduler.forget_prefixes()
        return True

    def _end(self) -> None:
        self._closing = True
        self._scheduler.abort(None)
        for done, _, version in self._updates:
            done.set_exception(_closed_before(version))
        self._updates.clear()


def load_backend(name_or_path: str, *, dtype: str = "float32", **options: Unpack[Options]) -> TransformersBackend:
    """Load 'smollm2' or a Hugging Face directory.

    Raises:
        ConfigError: no such model, or the local engine cannot serve it.
    """
    path = resolve_model(name_or_path)
    model, tokenizer = load_model_and_tokenizer(path, dtype)
    return TransformersBackend(model, tokenizer, model_path=str(path), **options)


def _closed_before(version: str) -> EngineError:
    return EngineError(f"the engine closed before weights {version!r} were loaded", status=503)

"""A model small enough for a test, a tokenizer of bytes, and a backend that a test can drive step by step."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slime_agl.errors import EngineError
from slime_agl.local.engine.backend import Generated, GenerateRequest
from slime_agl.local.engine.sampling import SamplingParams
from slime_agl.local.engine.transformers_backend import TransformersBackend

EOS = 256


class ByteTokenizer:
    """Ids 0 to 255 are bytes, 256 is `<eos>`, all above decode to nothing."""

    eos_token_id = EOS

    def __call__(self, text: str) -> SimpleNamespace:
        return SimpleNamespace(input_ids=list(text.encode()))

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        eos = b"" if skip_special_tokens else b"<eos>"
        pieces = (bytes([token]) if token < EOS else eos if token == EOS else b"" for token in ids)
        return b"".join(pieces).decode(errors="replace")


def tiny_model(seed: int = 0) -> LlamaForCausalLM:
    """Two layers, grouped attention heads, random weights large enough for a peaked distribution."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


class Driven:
    """A running backend. `send` queues a request, `ask` waits for its answer."""

    def __init__(self, backend: TransformersBackend) -> None:
        self.backend = backend
        self._count = 0

    def send(self, ids: list[int], *, rid: str = "", stream: bool = False, **params: object) -> queue.Queue:
        self._count += 1
        given = {"max_new_tokens": 12, "ignore_eos": True, **params}
        updates: queue.Queue[Generated | EngineError] = queue.Queue()
        request = GenerateRequest(
            rid=rid or f"r{self._count}", input_ids=tuple(ids), sampling=SamplingParams(**given), stream=stream
        )
        self.backend.submit(request, updates.put)
        return updates

    def ask(self, ids: list[int], **params: object) -> Generated:
        return last(self.send(ids, **params))

    def ask_together(self, prompts: list[list[int]], **params: object) -> list[Generated]:
        """All prompts in one batch: they wait until the last has arrived."""
        self.backend.pause("in_place")
        sent = [self.send(ids, **params) for ids in prompts]
        self.backend.resume()
        return [last(updates) for updates in sent]


def last(updates: queue.Queue) -> Generated:
    """The final update of a request; an error is raised."""
    while True:
        update = updates.get(timeout=20)
        if isinstance(update, EngineError):
            raise update
        if update.finish is not None:
            return update


class StepGate:
    """Lets a model do a given number of forward passes, then holds it."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._permits = threading.Semaphore(0)
        self._hook = model.register_forward_pre_hook(self._wait)

    def allow(self, steps: int) -> None:
        self._permits.release(steps)

    def _wait(self, *_: object) -> None:
        self._permits.acquire()

    def open(self) -> None:
        self._hook.remove()
        self._permits.release(1_000)

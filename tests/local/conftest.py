"""Running backends over a tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from local_helpers import ByteTokenizer, Driven, StepGate, tiny_model
from transformers import LlamaForCausalLM

from slime_agl.local.engine.transformers_backend import TransformersBackend


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model() -> LlamaForCausalLM:
    return tiny_model()


@pytest.fixture
def drive(model: LlamaForCausalLM) -> Iterator[Callable[..., Driven]]:
    """Makes running backends over the tiny model; options are those of TransformersBackend."""
    made: list[TransformersBackend] = []

    def make(*, of: LlamaForCausalLM | None = None, tokenizer: object = None, **options: object) -> Driven:
        backend = TransformersBackend(of or model, tokenizer or ByteTokenizer(), **options)
        backend.start()
        made.append(backend)
        return Driven(backend)

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def gate() -> Iterator[tuple[LlamaForCausalLM, StepGate]]:
    """The tiny model again, in an instance of its own, and the gate in front of it."""
    gated = tiny_model()
    stepper = StepGate(gated)
    yield gated, stepper
    stepper.open()

"""Values that the script and the backend of the scripted server exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from slime_agl.testing.answers import Answer, Shaped
from slime_agl.testing.replay import FakeReplay


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A `/generate` request. headers: names in lower case. json: the whole body. text: the prompt, decoded."""

    index: int
    input_ids: tuple[int, ...]
    sampling_params: Mapping[str, Any]
    headers: Mapping[str, str]
    rid: str
    json: Mapping[str, Any]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The answer to a `/generate` request. finish: 'stop', 'length' or 'abort'."""

    request: Received
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    matched: int | str | None


class Script(Protocol):
    """The backend's view of the script, used on the server's thread."""

    tokenizer: PreTrainedTokenizerBase
    weight_version: str
    context_length: int
    replay: FakeReplay | None
    partial: int
    control: list[tuple[str, Mapping]]
    requests: list[Received]

    def next_fault(self) -> tuple[int, str] | None: ...

    def next_answer(self, request: Received) -> Answer | None: ...

    def sent(self, request: Received, shaped: Shaped) -> None: ...

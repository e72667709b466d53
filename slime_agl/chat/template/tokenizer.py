"""The part of Hugging Face tokenizers that this package uses."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Core


class Tokenizer(Protocol):
    """A Hugging Face tokenizer, fast or slow. chat_template: Jinja source, or several by name."""

    chat_template: str | Mapping[str, str] | None
    eos_token: str | None
    eos_token_id: int | None
    all_special_ids: Sequence[int]
    added_tokens_decoder: Mapping[int, AddedToken]

    def get_vocab(self) -> Mapping[str, int]: ...

    def convert_ids_to_tokens(self, ids: list[int], /) -> Sequence[str | None]: ...

    def encode(self, text: str, /, *, add_special_tokens: bool) -> list[int]: ...

    def decode(
        self, ids: Sequence[int], /, *, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: list[dict],
        /,
        *,
        tools: list[dict] | None,
        chat_template: str | None,
        add_generation_prompt: bool,
        tokenize: bool,
        **variables: object,
    ) -> str: ...


def core_of(tokenizer: Tokenizer) -> Core | None:
    """Return the Rust core of a fast tokenizer, which it shares with every other user; None for a slow one."""
    return getattr(tokenizer, "backend_tokenizer", None)


def private_core(tokenizer: Tokenizer) -> Core | None:
    """Return a copy of a fast tokenizer's Rust core, without truncation and padding; None for a slow one."""
    core = core_of(tokenizer)
    if core is None:
        return None
    own = copy.deepcopy(core)
    own.no_truncation()
    own.no_padding()
    return own

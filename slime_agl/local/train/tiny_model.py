"""Make a tiny transformer that knows the format of calls and answers, but not what to call or answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from slime_agl.local.engine.model import without_progress_bars
from slime_agl.local.engine.score import response_logits, taken_logprobs
from slime_agl.local.train.boxes import CALL_CLOSER, CALL_OPENER, Talk, aimless
from slime_agl.local.train.tiny_tokenizer import TURN_END, tiny_tokenizer

CONTEXT_LENGTH = 256

LESSONS = 50
_LESSON_TALKS = 32
_LESSON_RATE = 3e-3
_SPELLED = 0.1

Talks = Callable[[random.Random], Talk]


def make_tiny_checkpoint(directory: Path, seed: int = 0, *, talks: Talks = aimless, lessons: int = LESSONS) -> Path:
    """Make a model and its tokenizer, and save them as a Hugging Face directory; takes a few seconds.

    The model has about 100,000 float32 weights. talks: draws the conversations that it is taught on, with one word in
    ten spelled by characters; by default those in which it opens any box and says any code with about equal
    probability. lessons: number of batches of these.
    """
    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_config(tokenizer))
    _teach(model, tokenizer, random.Random(seed), talks, lessons)
    with without_progress_bars():
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.vocab[TURN_END],
        pad_token_id=None,
    )


def _teach(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, chance: random.Random, talks: Talks, lessons: int
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=_LESSON_RATE)
    for _ in range(lessons):
        sequences = [turn for _ in range(_LESSON_TALKS) for turn in _turns(talks(chance), tokenizer, chance)]
        logits = response_logits(model, sequences)
        logprobs = [taken_logprobs(rows, *sequence) for rows, sequence in zip(logits, sequences, strict=True)]
        loss = -torch.cat(logprobs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _turns(talk: Talk, tokenizer: PreTrainedTokenizerFast, chance: random.Random) -> list[tuple[list[int], int]]:
    """Return the model's turns of a conversation as (tokens, length of the turn)."""
    tokens: list[str] = []
    turns = []
    for said in talk:
        tokens += ["<|im_start|>", f"{said.role}\n"]
        if said.role != "assistant":
            tokens += [said.word, TURN_END]
            continue
        word = list(said.word) if chance.random() < _SPELLED else [said.word]
        turn = [CALL_OPENER, *word, CALL_CLOSER, TURN_END] if said.call else [*word, TURN_END]
        tokens += turn
        turns.append((_ids(tokenizer, tokens), len(turn)))
    return turns


def _ids(tokenizer: PreTrainedTokenizerFast, tokens: list[str]) -> list[int]:
    ids = tokenizer.convert_tokens_to_ids(tokens)
    return ids if isinstance(ids, list) else [ids]

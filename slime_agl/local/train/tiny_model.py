"""Make a tiny transformer that knows the format of calls and answers, but not what to call or answer."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from slime_agl.local.engine.model import without_progress_bars
from slime_agl.local.engine.score import response_logits, taken_logprobs
from slime_agl.local.train.boxes import CALL_CLOSER, CALL_OPENER, Play, aimless
from slime_agl.local.train.tiny_tokenizer import TURN_END, tiny_tokenizer

CONTEXT_LENGTH = 256

_LESSONS = 50
_LESSON_PLAYS = 32
_LESSON_RATE = 3e-3
_SPELLED = 0.1


def make_tiny_checkpoint(directory: Path, seed: int = 0) -> Path:
    """Make a model and its tokenizer, and save them as a Hugging Face directory; takes a few seconds.

    The model has about 100,000 float32 weights. It is taught on `boxes.aimless` conversations, with one word in ten
    spelled by characters, so that it opens any box and says any code with about equal probability.
    """
    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_config(tokenizer))
    _teach_form(model, tokenizer, random.Random(seed))
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


def _teach_form(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, chance: random.Random) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=_LESSON_RATE)
    for _ in range(_LESSONS):
        sequences = [turn for _ in range(_LESSON_PLAYS) for turn in _turns(aimless(chance), tokenizer, chance)]
        logits = response_logits(model, sequences)
        logprobs = [taken_logprobs(rows, *sequence) for rows, sequence in zip(logits, sequences, strict=True)]
        loss = -torch.cat(logprobs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _turns(play: Play, tokenizer: PreTrainedTokenizerFast, chance: random.Random) -> list[tuple[list[int], int]]:
    """Return the two turns of a conversation as (tokens, length of the last turn)."""

    def written(word: str) -> list[str]:
        return list(word) if chance.random() < _SPELLED else [word]

    start = ["<|im_start|>", "assistant\n"]
    prompt = ["<|im_start|>", "user\n", play.asked, TURN_END, *start]
    call = [CALL_OPENER, *written(play.opened), CALL_CLOSER, TURN_END]
    result = ["<|im_start|>", "tool\n", play.found, TURN_END, *start]
    answer = [*written(play.said), TURN_END]
    turns = (prompt + call, call), (prompt + call + result + answer, answer)
    return [(_ids(tokenizer, tokens), len(turn)) for tokens, turn in turns]


def _ids(tokenizer: PreTrainedTokenizerFast, tokens: list[str]) -> list[int]:
    ids = tokenizer.convert_tokens_to_ids(tokens)
    return ids if isinstance(ids, list) else [ids]

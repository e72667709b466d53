"""Supervised fine-tuning on exported rows: slime's `--rollout-function-path slime_agl.rollout.sft`.

No engine and no agent takes part: rows of `slime-agl export` become Samples token by token, so that a cold start trains
on the tokens that reinforcement learning would see, not on a second encoding of their text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from slime_agl.chat.template.loader import load_tokenizer, vocab_size_of
from slime_agl.chat.template.token_text import token_bytes
from slime_agl.chat.template.tokenizer import Tokenizer
from slime_agl.errors import ConfigError
from slime_agl.export.rows import checksum
from slime_agl.host import RolloutArgs, RolloutFnTrainOutput, Sample
from slime_agl.host.args import flag

HINT = "--input-key messages --metadata-key metadata, with a file of `slime-agl export` as --prompt-data"
KEYS = ("tokens", "loss_mask")


def sft(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> RolloutFnTrainOutput:
    """Return `rollout_batch_size` groups of one Sample each, with the ids and mask of the next rows.

    args, rollout_id, data_source: as slime gives them. Sample.reward is the row's, for slime's logs: the loss does not
    use it. The response begins at the first trained token, as in slime's own SFT.

    Raises:
        ConfigError: a flag has to be changed, or a row is not one of `slime-agl export`, contradicts itself, exceeds
            --rollout-max-context-len, or comes from another tokenizer; names both numbers.
    """
    if evaluation:
        raise ConfigError(
            "slime_agl.rollout.sft runs no agent, so it cannot evaluate; leave --eval-interval out, or pass "
            "--eval-function-path slime_agl.rollout.generate"
        )
    if found := list(sft_problems(args)):
        raise ConfigError("\n".join(found))
    read = RolloutArgs.read(args)
    vocabulary = _vocabulary(str(read.hf_checkpoint))
    groups = data_source.get_samples(read.rollout_batch_size)
    if len(groups) != read.rollout_batch_size:
        raise ConfigError(
            f"the data source gave {len(groups)} rows, --rollout-batch-size is {read.rollout_batch_size}; "
            "--prompt-data must hold at least one row"
        )
    for group in groups:
        for sample in group:
            _fill(sample, vocabulary, read.rollout_max_context_len)
    samples = [sample for group in groups for sample in group]
    return RolloutFnTrainOutput(samples=groups, metrics=_metrics(samples))


def sft_problems(args: Any) -> Iterator[str]:
    """Flags of slime under which it would not train on the rows as they are, each with its cure."""
    samples = getattr(args, "n_samples_per_prompt", None) or 1
    if samples != 1:
        yield f"--n-samples-per-prompt is {samples}, and slime_agl.rollout.sft takes each row once; pass 1"
    loss = getattr(args, "loss_type", "sft_loss")
    if loss != "sft_loss":
        yield f"--loss-type is {loss}, which trains on advantages that rows do not have; pass --loss-type sft_loss"
    if getattr(args, "compute_advantages_and_returns", False):
        yield "slime would compute advantages of rows; pass --disable-compute-advantages-and-returns"
    if (top_p := getattr(args, "rollout_top_p", None)) not in (None, 1, 1.0):
        yield f"--rollout-top-p is {top_p}, for which slime asks every Sample for top-p sets; pass 1.0"
    if getattr(args, "use_rollout_routing_replay", False):
        yield "--use-rollout-routing-replay asks for routed experts, which rows do not have; leave it out"
    if getattr(args, "hf_checkpoint", None) is None:
        yield "--hf-checkpoint is missing; its tokenizer must be the one of the rows"


class _Vocabulary:
    """The checkpoint's tokenizer, with each token's bytes looked up once. size: every id is below it."""

    def __init__(self, tokenizer: Tokenizer, size: int, checkpoint: str) -> None:
        self._tokenizer, self.size, self.checkpoint = tokenizer, size, checkpoint
        self._bytes: dict[int, bytes] = {}

    def checksum(self, ids: Sequence[int]) -> int:
        unknown = sorted(set(ids) - self._bytes.keys())
        self._bytes.update(zip(unknown, token_bytes(self._tokenizer, unknown), strict=True))
        return checksum(self._bytes[i] for i in ids)


@lru_cache(maxsize=1)
def _vocabulary(checkpoint: str) -> _Vocabulary:
    tokenizer = load_tokenizer(checkpoint)
    return _Vocabulary(tokenizer, vocab_size_of(checkpoint, tokenizer), checkpoint)


def _fill(sample: Any, vocabulary: _Vocabulary, longest: int | None) -> None:
    data = dict(sample.metadata) if isinstance(sample.metadata, Mapping) else {}
    where = f"row {sample.index} of --prompt-data, in the order they are taken"
    if data.get("execution"):
        where = f"{where} (segment {data.get('segment')} of execution {data['execution']})"
    if missing := [name for name in KEYS if name not in data]:
        raise ConfigError(f"{where} has no metadata.{missing[0]}; pass {HINT}")
    tokens, mask = ([_whole(i, name, where) for i in _listed(data[name], name, where)] for name in KEYS)
    _require_sound(tokens, mask, where)
    if wrong := next((i for i in tokens if not 0 <= i < vocabulary.size), None):
        raise ConfigError(
            f"{where} has token id {wrong}, {vocabulary.checkpoint} has {vocabulary.size} tokens; use the checkpoint "
            "whose run was exported"
        )
    if longest is not None and len(tokens) > longest:
        raise ConfigError(
            f"{where} has {len(tokens)} tokens, --rollout-max-context-len is {longest}; raise it, or export with "
            f"--where 'tokens <= {longest}'"
        )
    written = data.get("checksum")
    if written is not None and (spelled := vocabulary.checksum(tokens)) != written:
        raise ConfigError(
            f"{where}: its {len(tokens)} tokens have checksum {written}, with the tokenizer of {vocabulary.checkpoint} "
            f"they have {spelled}: they come from another tokenizer, or were changed; {flag('hf_checkpoint')} must "
            "name the tokenizer of the exported run"
        )
    sample.response_length = len(mask) - mask.index(1)
    sample.tokens, sample.loss_mask = tokens, mask[len(mask) - sample.response_length :]
    reward = data.get("reward")
    sample.reward = float(reward) if isinstance(reward, int | float) else 0.0
    sample.status = Sample.Status.COMPLETED
    sample.metadata = {name: value for name, value in data.items() if name not in KEYS}
    if data.get("source"):
        sample.metadata["source_name"] = data["source"]  # where slime looks for it


def _require_sound(tokens: list[int], mask: list[int], where: str) -> None:
    if len(tokens) != len(mask):
        raise ConfigError(f"{where} has {len(tokens)} tokens and {len(mask)} entries in loss_mask; export it again")
    if other := next((value for value in mask if value not in (0, 1)), None):
        raise ConfigError(f"{where} has {other} in loss_mask, whose entries are 0 or 1; export it again")
    if 1 not in mask:
        raise ConfigError(f"{where} has {len(tokens)} tokens, of which 0 train; export it again, which leaves it out")
    if mask[0]:
        raise ConfigError(f"{where} trains on its first token, which no other token predicts; export it again")


def _listed(value: object, name: str, where: str) -> Sequence[Any]:
    value = value.tolist() if hasattr(value, "tolist") else value  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where}: metadata.{name} is {type(value).__name__}, expected a list; pass {HINT}")
    return value


def _whole(value: object, name: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where}: metadata.{name} has {value!r}, a {type(value).__name__}; expected whole numbers")
    return value


def _metrics(samples: Sequence[Any]) -> dict[str, float]:
    tokens = sum(len(sample.tokens) for sample in samples)
    trained = sum(sum(sample.loss_mask) for sample in samples)
    return {
        "rollout/agl/sft/rows": len(samples),
        "rollout/agl/sft/tokens": tokens,
        "rollout/agl/sft/trained_tokens": trained,
        "rollout/agl/sft/trained_token_ratio": trained / tokens if tokens else 0.0,
    }

"""A table of conversations, for slime's trackers: some of a step's Samples, from the worst to the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from slime_agl.config import TablesConfig
from slime_agl.host import Sample
from slime_agl.host.tracking import Row, log_table, shows_tables

COLUMNS = ("reward", "group", "index", "segment", "status", "tokens", "trained", "weights", "conversation")
LONGEST = 20_000

Decode = Callable[[Sequence[int]], str]


def show_conversations(
    args: Any, config: TablesConfig, rollout_id: int, output: Any, decode: Decode, *, evaluation: bool
) -> None:
    """Log `config.conversations` conversations each `config.every` steps, and of every evaluation.

    output: of the rollout function. decode: ids to text, special tokens included, so that a row shows what trains.
    """
    due = evaluation or (config.every and rollout_id % config.every == 0)
    if not (due and config.every and config.conversations and shows_tables(args)):
        return
    if evaluation:
        for name, entry in output.data.items():
            rows = [_row(args, sample, decode) for sample in _spread(args, entry["samples"], config.conversations)]
            log_table(args, rollout_id, f"eval/agl/conversations/{name}", COLUMNS, rows)
        return
    samples = _spread(args, list(_flat(output.samples)), config.conversations)
    log_table(args, rollout_id, "rollout/agl/conversations", COLUMNS, [_row(args, one, decode) for one in samples])


def _flat(nest: Any) -> Iterator[Sample]:
    if isinstance(nest, list):
        for one in nest:
            yield from _flat(one)
    else:
        yield nest


def _spread(args: Any, samples: Sequence[Sample], count: int) -> list[Sample]:
    """At most `count` Samples, evenly spaced from the lowest reward to the highest; the longest first among equals."""
    ranked = sorted(samples, key=lambda one: (_reward(args, one), -len(one.tokens)))
    if len(ranked) <= count:
        return ranked
    places = [round(at * (len(ranked) - 1) / max(1, count - 1)) for at in range(count)]
    return [ranked[at] for at in places]


def _reward(args: Any, sample: Sample) -> float:
    reward: Any = sample.reward
    if isinstance(reward, dict):
        key = getattr(args, "reward_key", None)
        reward = reward[key] if key in reward else next(iter(reward.values()), None)
    return float(reward) if isinstance(reward, int | float) else float("-inf")


def _row(args: Any, sample: Sample, decode: Decode) -> Row:
    reward = _reward(args, sample)
    trained = 0 if sample.remove_sample else sum(sample.loss_mask or ())
    text = decode(sample.tokens)
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n… {len(text) - LONGEST} characters …\n{text[-LONGEST // 2 :]}"
    return (
        None if reward == float("-inf") else reward,
        sample.group_index,
        sample.index,
        ((sample.metadata or {}).get("agl") or {}).get("segment", 0),
        sample.status.value,
        len(sample.tokens),
        trained,
        ", ".join(dict.fromkeys(map(str, sample.weight_versions or ()))),
        text,
    )

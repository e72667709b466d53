"""pass@k and mean@k of an evaluation as metrics, by dataset and by agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slime_agl.config import Config
from slime_agl.executor.entry import Entry
from slime_agl.report.passing import figures
from slime_agl.report.summary import number
from slime_agl.rollout.tally import Tally


def put_figures(tally: Tally, dataset: Any, rewards: Sequence[Any], entries: Sequence[Entry], config: Config) -> None:
    """Put `DATASET/pass@k` and `DATASET/mean@k`, each with `_low` and `_high`; with several agents also for each.

    dataset: an EvalDatasetConfig. rewards: as slime logs them, in the order of `entries`, which are those of row after
    row.
    """
    size, success = dataset.n_samples_per_eval_prompt, config.evaluation.success
    found = {dataset.name: _by_prompt(size, [number(reward) for reward in rewards])}
    for agent, own in _by_agent(entries, rewards):
        found[f"{dataset.name}/{agent}"] = _by_prompt(size, own)
    for name, groups in found.items():
        for figure, value in figures(groups, success).items():
            tally.put(f"{name}/{figure}", value.value)
            tally.put(f"{name}/{figure}_low", value.low)
            tally.put(f"{name}/{figure}_high", value.high)


def _by_prompt(size: int, rewards: Sequence[float | None]) -> list[list[float]]:
    groups = [rewards[at : at + size] for at in range(0, len(rewards), size)]
    return [[reward for reward in group if reward is not None] for group in groups]


def _by_agent(entries: Sequence[Entry], rewards: Sequence[Any]) -> Iterator[tuple[str, list[float | None]]]:
    """Rewards of each agent by execution, None where it took no part; nothing if there is one agent only."""
    credits: list[Mapping[str, float | None]] = [entry.summary.agents for entry in entries]
    agents = list(dict.fromkeys(agent for credit in credits for agent in credit))
    for agent in agents if len(agents) > 1 else ():
        yield (
            agent,
            [
                None if agent not in credit else number(reward) if credit[agent] is None else credit[agent]
                for credit, reward in zip(credits, rewards, strict=True)
            ],
        )

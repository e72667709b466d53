"""pass@k and mean@k of recorded evaluations, by step, dataset and agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from slime_agl.credit.emitted import Emitted
from slime_agl.credit.per_agent import agent_of, per_agent
from slime_agl.record.run import RecordedExecution
from slime_agl.report.passing import Figure, figures
from slime_agl.report.summary import Pair, number

SUCCESS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFigures:
    """agent: '' for the executions as a whole. figures: as `passing.figures`. success: reward that passes."""

    step: str
    dataset: str
    agent: str
    prompts: int
    executions: int
    success: float
    figures: dict[str, Figure]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def evaluations(pairs: Sequence[Pair]) -> list[EvalFigures]:
    """Figures of every dataset of every recorded evaluation; by agent too where several took part.

    Executions that ran again for new weights do not count. The reward that passes is `agl.evaluation.success` as
    recorded. Rewards that link attributes give to an agent are not told apart: records have no links.
    """
    rewards: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    passes: dict[str, float] = {}
    for record, execution in pairs:
        if not execution.dataset or not execution.samples:
            continue
        passes[record.name] = _success(record.header.get("agl"))
        prompt = execution.samples[0].group_index or 0
        for agent, reward in _rewards(execution):
            groups = rewards.setdefault((record.name, execution.dataset, agent), {})
            if reward is not None:
                groups.setdefault(prompt, []).append(reward)
    alone = {key[:2] for key in rewards if sum(other[:2] == key[:2] for other in rewards) == 2}
    return [
        EvalFigures(
            step=step,
            dataset=dataset,
            agent=agent,
            prompts=len(groups),
            executions=sum(map(len, groups.values())),
            success=passes[step],
            figures=figures(list(groups.values()), passes[step]),
        )
        for (step, dataset, agent), groups in rewards.items()
        if groups and not (agent and (step, dataset) in alone)
    ]


def _rewards(execution: RecordedExecution) -> Iterator[tuple[str, float | None]]:
    own = number(execution.samples[0].reward)
    yield "", own
    parts = execution.segments
    addressed = per_agent(_emitted(execution), parts)
    for agent, reward in {agent_of(part): reward for part, reward in zip(parts, addressed, strict=True)}.items():
        yield agent, own if reward is None else number(reward)


def _emitted(execution: RecordedExecution) -> list[Emitted]:
    told = [
        (after, {name: value for name, value in values.items() if value is not None})
        for after, values in execution.rewards
    ]
    return [Emitted(values, after) for after, values in told if values]


def _success(section: object) -> float:
    own = section.get("evaluation") if isinstance(section, dict) else None
    value = own.get("success") if isinstance(own, dict) else None
    return float(value) if isinstance(value, int | float) else SUCCESS

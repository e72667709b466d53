"""Rewards that belong to one agent of several.

The model name in a request identifies the agent: a planner that calls `model="planner"` and a coder that calls
`model="coder"` are two agents, whatever weights answer them.

A worked example. A planner has one segment, a coder has two, a critic has one. The agent emits

    agl.emit_reward({"team": 0.5, "planner": 1.0, "coder": 0.0}, primary_key="team")

The planner's Sample gets 1.0, both of the coder's get 0.0, and the critic, whom no dimension names, gets the primary
value 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from slime_agl.credit.emitted import Emitted, Reward, reward_of
from slime_agl.trace.segments import Segment


def per_agent(emitted: Sequence[Emitted], segments: Sequence[Segment]) -> list[Reward | None]:
    """The credit of each segment: the last reward addressed to its agent.

    A reward is addressed to an agent if one of its dimensions has the agent's name, and then that dimension is the
    credit; or if it is linked to turns of the agent, for example by the link `gen_ai.request.model`, and then all of it
    is. An agent without one gets the last unlinked reward, minus the dimensions that name an agent; None without that.

    A segment's agent is the model name of its last trained turn.
    """
    turns = {turn.index: turn.model for segment in segments for turn in segment.turns}
    agents = set(turns.values())
    found: dict[str, Reward] = {}
    common: Reward | None = None
    for item in emitted:
        addressed = {turns[index] for index in item.linked if index in turns} if item.linked else agents
        for agent in addressed:
            if agent in item.values:
                found[agent] = item.values[agent]
            elif item.linked:
                found[agent] = item.reward
        shared = {name: value for name, value in item.values.items() if name not in agents}
        if shared and not item.linked:
            common = reward_of(shared)
    return [found.get(agent_of(segment), common) for segment in segments]


def agent_of(segment: Segment) -> str:
    """The model name in the request of a segment's last trained turn."""
    return next(turn.model for turn in reversed(segment.turns) if turn.index in segment.trained)

"""The public modules of this package: what their `__all__` names, and nothing else, is kept stable and documented."""

from __future__ import annotations

MODULES = (
    "slime_agl",
    "slime_agl.rollout",
    "slime_agl.generate",
    "slime_agl.reward",
    "slime_agl.advantage",
    "slime_agl.reducers",
    "slime_agl.data_source",
    "slime_agl.harness.agent",
    "slime_agl.execution",
    "slime_agl.credit.emitted",
    "slime_agl.trace.ledger",
    "slime_agl.trace.segments",
    "slime_agl.trace.turn",
    "slime_agl.errors",
    "slime_agl.testing",
)

"""What was found out about a chat template, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Mode = Literal["short", "real", "fork"]


@dataclass(frozen=True, slots=True)
class KindReport:
    """What holds for one kind of continuation.

    mode: 'short' or 'real' when the delta is proven to be the tail of encode(full render), else 'fork'.
    reason: why it forks, or why 'short' was not enough; '' for 'short'.
    keeps_plain, keeps_reasoning: earlier turns stand in the next prompt as they were sampled.
    hides: roles whose new messages the template does not write at all.
    """

    mode: Mode
    reason: str
    keeps_plain: bool
    keeps_reasoning: bool
    hides: tuple[str, ...] = ()

    def rewrites(self, *, reasoning: bool) -> bool:
        """Say whether the template shows earlier turns differently from how they were sampled."""
        return not (self.keeps_reasoning if reasoning else self.keeps_plain)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What a template does, and the plan that follows from it.

    closes_turns: it writes a stop token after each assistant turn; else the next role's opener is one.
    stop_tokens: the strings that can mark the end of a turn. tools: it shows tools to the model.
    parallel_calls: it shows every call of a turn. reasoning: it can show reasoning of an earlier turn.
    opens_think: its generation prompt opens `<think>`.
    nine_letter_ids: it takes tool-call ids of exactly nine letters and digits only.
    history_kwargs: template variables that make it keep reasoning at a user turn; empty when none
        does or none is needed.
    """

    closes_turns: bool
    stop_tokens: tuple[str, ...]
    tools: bool
    parallel_calls: bool
    reasoning: bool
    opens_think: bool
    nine_letter_ids: bool
    history_kwargs: Mapping[str, bool]
    kinds: Mapping[str, KindReport] = field(default_factory=dict)

    def forks(self) -> dict[str, str]:
        """The kinds whose held ids cannot be extended, and why."""
        return {kind: found.reason for kind, found in self.kinds.items() if found.mode == "fork"}

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return {**asdict(self), "stop_tokens": list(self.stop_tokens)}

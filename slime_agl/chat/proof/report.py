"""What was found out about a chat template, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Mode = Literal["short", "real", "fork"]

# What a template may leave out, and how to say so.
HIDDEN = {
    "tools": "the list of tools",
    "tool_calls": "tool calls",
    "tool_results": "tool results",
    "some_tool_results": "some tool results",
    "system": "system and developer messages",
    "later_system": "system messages after a turn",
    "user": "some user messages",
}


@dataclass(frozen=True, slots=True)
class MissingStop:
    """A token that a template writes where a turn ends, and that is no stop token.

    kinds: continuations that fork for want of it.
    """

    token: str
    id: int
    kinds: tuple[str, ...]

    def advice(self) -> str:
        """What to do, in one sentence."""
        return (
            f"if the model ends turns with {self.token}, add {self.id} to eos_token_id in generation_config.json "
            f"or to --rollout-stop-token-ids"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What a template does, and the plan that follows from it.

    closes_turns: it writes a stop token after each assistant turn; else the next role's opener is one.
    stop_tokens: the strings that can mark the end of a turn. tools: it shows tools to the model.
    parallel_calls: it shows every call of a turn. reasoning: it can show reasoning of an earlier turn.
    opens_think: its generation prompt opens `<think>`.
    nine_letter_ids: it takes tool-call ids of exactly nine letters and digits only.
    history_kwargs: template variables that make it keep reasoning at a user turn; empty when none
        does or none is needed.
    hidden: what it takes and does not show to the model, keys of HIDDEN. images: it shows images; else requests
        with images are refused.
    missing_stops: tokens that the list of stop tokens seems to lack.
    """

    closes_turns: bool
    stop_tokens: tuple[str, ...]
    tools: bool
    parallel_calls: bool
    reasoning: bool
    opens_think: bool
    nine_letter_ids: bool
    history_kwargs: Mapping[str, bool]
    hidden: tuple[str, ...] = ()
    images: bool = False
    missing_stops: tuple[MissingStop, ...] = ()
    kinds: Mapping[str, KindReport] = field(default_factory=dict)

    def forks(self) -> dict[str, str]:
        """The kinds whose held ids cannot be extended, and why."""
        return {kind: found.reason for kind, found in self.kinds.items() if found.mode == "fork"}

    def warnings(self) -> list[str]:
        """What a run should be told before it starts, one sentence each."""
        hidden = ", ".join(HIDDEN[name] for name in self.hidden)
        return [
            *([f"it does not show the model {hidden}; give another with --chat-template-path"] if hidden else []),
            *(f"requests of kind {', '.join(one.kinds)} fork: {one.advice()}" for one in self.missing_stops),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return {**asdict(self), "stop_tokens": list(self.stop_tokens)}

"""Findings of the template audit, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from slime_agl.chat.template.systems import Systems
from slime_agl.chat.template.tail import Method

# Inputs that a template may omit, in words.
HIDDEN = {
    "tools": "the list of tools",
    "tool_calls": "tool calls",
    "tool_results": "tool results",
    "some_tool_results": "some tool results",
    "system": "system and developer messages",
    "later_system": "system messages after a turn",
    "user": "some user messages",
}
# Ways to show system messages after the first user message, in words.
LATER = {
    "as_user": "later ones are shown as user messages",
    "joined": "later ones are joined to the message before or after them",
}

_ANOTHER = (
    "agents that send these need another, named as chat_template_path beside agl: in the file of --custom-config-path"
)


@dataclass(frozen=True, slots=True)
class MissingStop:
    """A token that a template writes at the end of a turn but that is not a stop token.

    kinds: continuations that fork because of that.
    """

    token: str
    id: int
    kinds: tuple[str, ...]

    def advice(self) -> str:
        """The fix, in one sentence."""
        return (
            f"if the model ends turns with {self.token}, add {self.id} to eos_token_id in generation_config.json "
            f"or to --rollout-stop-token-ids"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KindReport:
    """The finding on one kind of continuation.

    method: 'short' or 'real' if the delta is proven to be the tail of encode(full render), else 'fork'.
    reason: why it forks, or why 'short' is not enough; '' for 'short'.
    keeps_plain, keeps_reasoning: the next prompt contains earlier turns as they were sampled.
    hides: roles whose new messages the template does not write.
    """

    method: Method
    reason: str
    keeps_plain: bool
    keeps_reasoning: bool
    hides: tuple[str, ...] = ()

    def rewrites(self, *, reasoning: bool) -> bool:
        """Return True if the template writes earlier turns differently from how they were sampled."""
        return not (self.keeps_reasoning if reasoning else self.keeps_plain)

    def as_dict(self) -> dict[str, object]:
        """Return the finding as JSON-able values."""
        values = asdict(self)
        return {"mode": values.pop("method"), **values}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The features of a template, and the resulting plan.

    closes_turns: it writes a stop token after each assistant turn; else the next role's opener is one.
    stop_tokens: strings that can mark the end of a turn. tools: it writes the list of tools.
    parallel_calls: it writes every call of a turn. reasoning: it can write reasoning of an earlier turn.
    opens_think: its generation prompt opens `<think>`.
    nine_letter_ids: it accepts only tool-call ids of exactly nine letters and digits.
    history_kwargs: template variables that keep reasoning at a user turn; empty if there is none or none is needed.
    hidden: inputs that it accepts but does not write, keys of HIDDEN. images: it writes placeholders for images; else
        requests with images are refused.
    missing_stops: tokens that seem to be missing from the stop tokens.
    systems: how system messages are shown that the template does not take where they stand; `kinds` are shown so.
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
    systems: Systems = Systems()
    kinds: Mapping[str, KindReport] = field(default_factory=dict)

    def forks(self) -> dict[str, str]:
        """The kinds whose ids cannot be extended, with the reason."""
        return {kind: found.reason for kind, found in self.kinds.items() if found.method == "fork"}

    def warnings(self) -> list[str]:
        """Warnings for the user before a run starts, one sentence each."""
        hidden = ", ".join(HIDDEN[name] for name in self.hidden)
        return [
            *([f"it does not show the model {hidden}; {_ANOTHER}"] if hidden else []),
            *(f"requests of kind {', '.join(one.kinds)} fork: {one.advice()}" for one in self.missing_stops),
        ]

    def system_messages(self) -> str:
        """Say how system messages are shown that agents send beside the first one, '' if as sent."""
        folded = ["several at the beginning become one"] if self.systems.folds else []
        later = [LATER[self.systems.later]] if self.systems.later != "as_sent" else []
        return "; ".join(folded + later)

    def as_dict(self) -> dict[str, object]:
        """Return the report as JSON-able values."""
        kinds = {kind: found.as_dict() for kind, found in self.kinds.items()}
        return {**asdict(self), "stop_tokens": list(self.stop_tokens), "kinds": kinds}

"""Find out, before anything is sampled, what a chat template does and which deltas are right for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from slime_agl.chat.delta import Continuation, Fork, Mode, Tail, tail_of
from slime_agl.chat.messages import Reply, ToolCall, reply_message
from slime_agl.chat.probes import ANSWER, KINDS, THOUGHT, VALUE, Probe, calls_of, probes
from slime_agl.chat.renderer import Renderer
from slime_agl.chat.shape import PROBE_TOOLS
from slime_agl.errors import TemplateError

HISTORY_KWARGS: tuple[tuple[str, bool], ...] = (
    ("preserve_thinking", True),
    ("clear_thinking", False),
    ("truncate_history_thinking", False),
    ("keep_thinking", True),
)


@dataclass(frozen=True, slots=True)
class KindReport:
    """What holds for one kind of continuation.

    mode: 'short' or 'real' when the delta is proven to be the tail of encode(full render), else 'fork'.
    reason: why it forks, or why 'short' was not enough; '' for 'short'.
    keeps_plain, keeps_reasoning: earlier turns stand in the next prompt as they were sampled.
    """

    mode: Mode
    reason: str
    keeps_plain: bool
    keeps_reasoning: bool


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

    def mode(self, kind: str) -> Mode:
        """Return how to make the delta of a kind; a kind that was not tried is not proven."""
        return self.kinds[kind].mode if kind in self.kinds else "fork"

    def rewrites(self, kind: str, *, reasoning: bool) -> bool:
        """Say whether the template shows earlier turns differently from how they were sampled."""
        report = self.kinds.get(kind)
        return report is None or not (report.keeps_reasoning if reasoning else report.keeps_plain)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return {**asdict(self), "stop_tokens": list(self.stop_tokens)}


def audit(renderer: Renderer) -> AuditReport:
    """Try the renderer's template. What it refuses is a result, not an error."""
    calling = [_user(), reply_message(Reply("", "", calls_of("tool")))]
    shows_calls = VALUE in _render(renderer, calling, PROBE_TOOLS, False)
    kinds = {kind: _audit_kind(renderer, kind, shows_calls) for kind in KINDS}
    return AuditReport(
        closes_turns=_closes_turns(renderer),
        stop_tokens=renderer.stop_tokens,
        tools="probe_tool" in _render(renderer, [_user()], PROBE_TOOLS),
        parallel_calls=_shows_all_calls(renderer),
        reasoning=THOUGHT in _render(renderer, [_user(), reply_message(Reply(ANSWER, THOUGHT, ()))], None, False),
        opens_think=_render(renderer, [_user()], None).rstrip().endswith("<think>"),
        nine_letter_ids=_wants_nine_letters(renderer),
        history_kwargs=_history_kwargs(renderer, kinds["user"]),
        kinds=kinds,
    )


def _audit_kind(renderer: Renderer, kind: str, shows_calls: bool) -> KindReport:
    plain = list(probes(kind, reasoning=False, shows_calls=shows_calls))
    thinking = list(probes(kind, reasoning=True, shows_calls=shows_calls))
    fulls = [(probe, full) for probe in plain + thinking if (full := _full(renderer, probe.continuation))]
    if not fulls:
        return KindReport("fork", "template_refused", False, False)
    mode, reason = _choose(renderer, fulls)
    keeps = {
        name: _all([_keeps(renderer, probe.continuation, full) for probe, full in fulls if probe in group])
        for name, group in (("plain", plain), ("reasoning", thinking))
    }
    return KindReport(mode, reason, keeps["plain"], keeps["reasoning"])


def _choose(renderer: Renderer, fulls: list[tuple[Probe, str]]) -> tuple[Mode, str]:
    """Return the cheapest mode that is right for every probe, and what speaks against the cheaper ones."""
    encoded = [(probe, full, renderer.encode(full)) for probe, full in fulls]
    against = ""
    for mode in ("short", "real"):
        failure = next((why for case in encoded if (why := _failure(renderer, *case, mode))), "")
        if not failure:
            return mode, against
        against = failure
    return "fork", against


def _failure(renderer: Renderer, probe: Probe, full: str, full_ids: list[int], mode: Mode) -> str:
    """Return why the delta is not what follows the continued turn in the full render, '' when it is."""
    tail = tail_of(renderer, probe.continuation, mode)
    if isinstance(tail, Fork):
        return tail.reason
    if not full.endswith(tail.text) or full_ids[-len(tail.ids) :] != tail.ids:
        return "tail_differs"
    return "" if _starts_at_turn_end(renderer, full, tail, probe.words) else "marker_misplaced"


def _starts_at_turn_end(renderer: Renderer, full: str, tail: Tail, words: str) -> bool:
    """Say whether no stop token stands between the turn's last words and the tail."""
    _, found, gap = full[: -len(tail.text)].rpartition(words)
    return bool(found) and not any(token in gap for token in renderer.stop_tokens)


def _keeps(renderer: Renderer, c: Continuation, full: str) -> bool:
    """Say whether the prompt of the continued turn, and its reasoning, stand unchanged in the next prompt."""
    prompt = _render(renderer, c.context, c.tools)
    return bool(prompt) and full.startswith(prompt) and (not c.reply.reasoning or THOUGHT in full[len(prompt) :])


def _closes_turns(renderer: Renderer) -> bool:
    said = _render(renderer, [_user(), {"role": "assistant", "content": ANSWER}], None, False)
    after = said.rpartition(ANSWER)[2]
    return not said or any(token in after for token in renderer.stop_tokens)


def _shows_all_calls(renderer: Renderer) -> bool:
    shown = _render(renderer, [_user(), reply_message(Reply("", "", calls_of("parallel_tools")))], PROBE_TOOLS, False)
    return -1 < shown.find("first lantern") < shown.find(VALUE)


def _wants_nine_letters(renderer: Renderer) -> bool:
    def takes(call_id: str) -> bool:
        call = ToolCall(call_id, "probe_tool", "{}")
        result = {"role": "tool", "content": "x", "tool_call_id": call_id, "name": "probe_tool"}
        return bool(_render(renderer, [_user(), reply_message(Reply("", "", (call,))), result], PROBE_TOOLS))

    return takes("probe0001") and not takes("call_0123456789abcdef00")


def _history_kwargs(renderer: Renderer, user: KindReport) -> dict[str, bool]:
    if user.keeps_reasoning or user.mode == "fork":
        return {}
    probe = list(probes("user", reasoning=True, shows_calls=True))[1].continuation
    for name, value in HISTORY_KWARGS:
        full = _full(renderer, probe, {name: value})
        if full and THOUGHT in full and "an older thought" in full:
            return {name: value}
    return {}


def _full(renderer: Renderer, c: Continuation, kwargs: Mapping[str, Any] | None = None) -> str:
    return _render(renderer, [*c.context, reply_message(c.reply), *c.new_messages], c.tools, True, kwargs)


def _render(
    renderer: Renderer,
    messages: list[dict],
    tools: list[dict] | None,
    generation_prompt: bool = True,
    kwargs: Mapping[str, Any] | None = None,
) -> str:
    """Render, or return '' when the template refuses."""
    try:
        return renderer.render(messages, tools, kwargs, generation_prompt)
    except TemplateError:
        return ""


def _all(findings: list[bool]) -> bool:
    """Nothing found proves nothing."""
    return bool(findings) and all(findings)


def _user() -> dict:
    return {"role": "user", "content": "Is the harbour free?"}

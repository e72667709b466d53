"""Prove by trial that a delta is the tail of the full render, and that the history stays unchanged."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slime_agl.chat.proof.probes import THOUGHT, USER, VALUE, Probe, calls_of, probes
from slime_agl.chat.proof.report import KindReport
from slime_agl.chat.template.messages import Reply, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.seams import BEHIND, ELSEWHERE
from slime_agl.chat.template.shape import PROBE_TOOLS
from slime_agl.chat.template.systems import Systems
from slime_agl.chat.template.tail import Continuation, Fork, Method, Tail, render_whole, tail_of
from slime_agl.errors import TemplateError


def prove(renderer: Renderer, kind: str, kwargs: Mapping[str, object], systems: Systems | None = None) -> KindReport:
    """Try every probe of a kind. A refusal by the template is a finding, not an error.

    systems: how system messages among the new ones are shown; as sent by default.
    """
    shows_calls = VALUE in try_render(
        renderer, [USER, reply_message(Reply("", "", calls_of("tool")))], PROBE_TOOLS, kwargs
    )
    plain, thinking = (
        [
            probe if systems is None else _shown(probe, systems)
            for probe in probes(kind, kwargs, reasoning=reasoning, shows_calls=shows_calls)
        ]
        for reasoning in (False, True)
    )
    fulls = [(probe, full) for probe in plain + thinking if (full := whole(renderer, probe.continuation))]
    if not fulls:
        return KindReport(method="fork", reason="template_refused", keeps_plain=False, keeps_reasoning=False)
    method, reason = _choose(renderer, fulls)
    keeps_plain, keeps_reasoning = (
        [_keeps(renderer, probe.continuation, full) for probe, full in fulls if probe in group]
        for group in (plain, thinking)
    )
    hides = {role: None for probe, full in fulls for role, word in probe.news if word not in full}
    return KindReport(
        method=method,
        reason=reason,
        keeps_plain=bool(keeps_plain) and all(keeps_plain),
        keeps_reasoning=bool(keeps_reasoning) and all(keeps_reasoning),
        hides=tuple(hides),
    )


def _shown(probe: Probe, systems: Systems) -> Probe:
    new = systems.shown(probe.continuation.new_messages, first=False)
    return replace(probe, continuation=replace(probe.continuation, new_messages=new))


def try_render(
    renderer: Renderer,
    messages: Sequence[dict],
    tools: list[dict] | None,
    kwargs: Mapping[str, object],
    generation_prompt: bool = False,
) -> str:
    """Render; return '' if the template refuses."""
    try:
        return renderer.render(messages, tools, kwargs, generation_prompt)
    except TemplateError:
        return ""


def whole(renderer: Renderer, c: Continuation, kwargs: Mapping[str, object] | None = None) -> str:
    """Render all of a continuation; return '' if the template refuses. kwargs: replace its own."""
    try:
        return render_whole(renderer, [*c.context, reply_message(c.reply), *c.new_messages], c, kwargs)
    except TemplateError:
        return ""


def _choose(renderer: Renderer, fulls: list[tuple[Probe, str]]) -> tuple[Method, str]:
    """Return the cheapest method that is right for every probe, and why the next cheaper one is not."""
    encoded = [(probe, full, renderer.packed(full)) for probe, full in fulls]
    against = ""
    for method in ("short", "real"):
        failure = next((why for case in encoded if (why := _failure(renderer, *case, method))), "")
        if not failure:
            return method, against
        against = failure
    return "fork", against


def _failure(renderer: Renderer, probe: Probe, full: str, full_ids: array, method: Method) -> str:
    """Return '' if the delta is the text after the continued turn in the full render, else the reason why not."""
    tail = tail_of(renderer, probe.continuation, method)
    if isinstance(tail, Fork):
        return tail.reason
    if not full.endswith(tail.text) or full_ids[-len(tail.ids) :] != tail.ids:
        return "tail_differs"
    for _, word in probe.news:
        if full.count(word) != tail.text.count(word):
            return BEHIND if word in tail.gap else ELSEWHERE
    return "" if _starts_at_turn_end(renderer, full, tail, probe.words) else "marker_misplaced"


def _starts_at_turn_end(renderer: Renderer, full: str, tail: Tail, words: str) -> bool:
    """Check that there is no stop token between the turn's last words and the tail."""
    _, found, gap = full[: -len(tail.text)].rpartition(words)
    return bool(found) and not any(token in gap for token in renderer.stop_tokens)


def _keeps(renderer: Renderer, c: Continuation, full: str) -> bool:
    """Check that the next prompt contains the continued turn's prompt and reasoning unchanged."""
    prompt = try_render(renderer, c.context, c.tools, c.kwargs, True)
    return bool(prompt) and full.startswith(prompt) and (not c.reply.reasoning or THOUGHT in full[len(prompt) :])

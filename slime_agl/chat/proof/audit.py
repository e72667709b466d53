"""Find out, before anything is sampled, what a chat template does and which deltas are right for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from slime_agl.chat.proof.hidden import hidden_from_model, shows_images
from slime_agl.chat.proof.probes import ANSWER, KINDS, THOUGHT, USER, VALUE, calls_of, can_try, probes
from slime_agl.chat.proof.proofs import prove, shown, whole
from slime_agl.chat.proof.report import AuditReport, KindReport
from slime_agl.chat.proof.stops import missing_stops
from slime_agl.chat.template.delta import Mode
from slime_agl.chat.template.messages import Reply, ToolCall, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.shape import PROBE_TOOLS

HISTORY_KWARGS: tuple[tuple[str, bool], ...] = (
    ("preserve_thinking", True),
    ("clear_thinking", False),
    ("truncate_history_thinking", False),
    ("keep_thinking", True),
)
VARIABLES_HELD = 64
UNPROVEN = KindReport(mode="fork", reason="unproven", keeps_plain=False, keeps_reasoning=False)


class TemplateAudit:
    """What a renderer's template does. Each kind of continuation is tried once for each set of template variables.

    The usual kinds under the trainer's variables are tried at once (`report`); other kinds, and
    variables that single requests bring, when they first occur. A stop id learned later makes
    earlier findings void, so they are made anew. Safe to use from many threads; each finding is made once.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._proving, self._making_room = threading.Lock(), threading.Lock()
        self._found: dict[tuple[frozenset[int], str], dict[str, KindReport]] = {}
        self._closes: dict[frozenset[int], bool] = {}
        kinds = {kind: self.find(kind) for kind in KINDS}
        self.report = _report(renderer, kinds)

    @property
    def closes_turns(self) -> bool:
        """The template writes a stop token after each assistant turn; else the next role's opener is one."""
        known = self._renderer.marker_ids
        if known not in self._closes:
            self._closes[known] = _closes_turns(self._renderer)
        return self._closes[known]

    def mode(self, kind: str, kwargs: Mapping[str, Any] | None = None) -> Mode:
        """Return how to make the delta of a kind. kwargs: template variables of the request."""
        return self.find(kind, kwargs).mode

    def rewrites(self, kind: str, kwargs: Mapping[str, Any] | None = None, *, reasoning: bool) -> bool:
        """Say whether the template shows earlier turns differently from how they were sampled."""
        return self.find(kind, kwargs).rewrites(reasoning=reasoning)

    def find(self, kind: str, kwargs: Mapping[str, Any] | None = None) -> KindReport:
        """Return what holds for a kind; a kind of which there are no probes is not proven."""
        found = self._findings(kwargs or {})
        if kind not in found:
            if not can_try(kind):
                return UNPROVEN
            with self._proving:
                if kind not in found:
                    found[kind] = prove(self._renderer, kind, kwargs or {})
        return found[kind]

    def _findings(self, kwargs: Mapping[str, Any]) -> dict[str, KindReport]:
        key = (self._renderer.marker_ids, json.dumps(kwargs, sort_keys=True, default=repr))
        found = self._found.get(key)
        if found is not None:
            return found
        with self._making_room:
            if len(self._found) >= VARIABLES_HELD:
                self._found.pop(next(iter(self._found)))
            return self._found.setdefault(key, {})


def audit(renderer: Renderer) -> TemplateAudit:
    """Try the renderer's template. What it refuses is a result, not an error."""
    return TemplateAudit(renderer)


def _report(renderer: Renderer, kinds: Mapping[str, KindReport]) -> AuditReport:
    show = partial(shown, renderer, kwargs={})
    return AuditReport(
        closes_turns=_closes_turns(renderer),
        stop_tokens=renderer.stop_tokens,
        tools="probe_tool" in show([USER], PROBE_TOOLS, generation_prompt=True),
        parallel_calls=_shows_all_calls(renderer),
        reasoning=THOUGHT in show([USER, reply_message(Reply(ANSWER, THOUGHT, ()))], None),
        opens_think=show([USER], None, generation_prompt=True).rstrip().endswith("<think>"),
        nine_letter_ids=_wants_nine_letters(renderer),
        history_kwargs=_history_kwargs(renderer, kinds["user"]),
        hidden=hidden_from_model(renderer, kinds),
        images=shows_images(renderer),
        missing_stops=missing_stops(renderer, kinds),
        kinds=kinds,
    )


def _closes_turns(renderer: Renderer) -> bool:
    said = shown(renderer, [USER, {"role": "assistant", "content": ANSWER}], None, {})
    after = said.rpartition(ANSWER)[2]
    return not said or any(token in after for token in renderer.stop_tokens)


def _shows_all_calls(renderer: Renderer) -> bool:
    calling = [USER, reply_message(Reply("", "", calls_of("parallel_tools")))]
    written = shown(renderer, calling, PROBE_TOOLS, {})
    return -1 < written.find("first lantern") < written.find(VALUE)


def _wants_nine_letters(renderer: Renderer) -> bool:
    def takes(call_id: str) -> bool:
        call = ToolCall(call_id, "probe_tool", "{}")
        result = {"role": "tool", "content": "x", "tool_call_id": call_id, "name": "probe_tool"}
        messages = [USER, reply_message(Reply("", "", (call,))), result]
        return bool(shown(renderer, messages, PROBE_TOOLS, {}, True))

    return takes("probe0001") and not takes("call_0123456789abcdef00")


def _history_kwargs(renderer: Renderer, user: KindReport) -> dict[str, bool]:
    if user.keeps_reasoning or user.mode == "fork":
        return {}
    probe = list(probes("user", {}, reasoning=True, shows_calls=True))[1].continuation
    for name, value in HISTORY_KWARGS:
        full = whole(renderer, probe, {name: value})
        if full and THOUGHT in full and "an older thought" in full:
            return {name: value}
    return {}

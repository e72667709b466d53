"""Audit a chat template before anything is sampled: its features, and the delta method that is right for each kind."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import partial

from slime_agl.chat.proof.hidden import hidden_from_model, shows_images
from slime_agl.chat.proof.probes import ANSWER, KINDS, THOUGHT, USER, VALUE, calls_of, can_try, probes
from slime_agl.chat.proof.proofs import prove, try_render, whole
from slime_agl.chat.proof.report import AuditReport, KindReport
from slime_agl.chat.proof.stops import missing_stops
from slime_agl.chat.proof.systems import find_systems
from slime_agl.chat.template.messages import Reply, ToolCall, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.shape import PROBE_TOOLS
from slime_agl.chat.template.systems import Systems
from slime_agl.chat.template.tail import Method

HISTORY_KWARGS: tuple[tuple[str, bool], ...] = (
    ("preserve_thinking", True),
    ("clear_thinking", False),
    ("truncate_history_thinking", False),
    ("keep_thinking", True),
)
VARIABLES_CACHED = 64
UNPROVEN = KindReport(method="fork", reason="unproven", keeps_plain=False, keeps_reasoning=False)


class TemplateAudit:
    """Findings on a renderer's template: one proof per kind of continuation and set of template variables.

    The usual kinds with the trainer's variables are proven at once (`report`); other kinds, and variables of single
    requests, at first use. A new stop id voids earlier findings. Thread-safe; each finding is made once.

    systems: how system messages are shown. `find` judges kinds as they are then asked for; `report` has the kinds as
    agents send them.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._proving, self._making_room = threading.Lock(), threading.Lock()
        self._found: dict[tuple[frozenset[int], str], dict[str, KindReport]] = {}
        self._closes: dict[frozenset[int], bool] = {}
        self.systems, kinds = find_systems(renderer, {kind: self.find(kind) for kind in KINDS})
        self.report = _report(renderer, kinds, self.systems)

    @property
    def closes_turns(self) -> bool:
        """True if the template writes a stop token after an assistant turn; else the next opener is the stop token."""
        known = self._renderer.marker_ids
        if known not in self._closes:
            self._closes[known] = _closes_turns(self._renderer)
        return self._closes[known]

    def method(self, kind: str, kwargs: Mapping[str, object] | None = None) -> Method:
        """Return the method for deltas of a kind. kwargs: template variables of the request."""
        return self.find(kind, kwargs).method

    def rewrites(self, kind: str, kwargs: Mapping[str, object] | None = None, *, reasoning: bool) -> bool:
        """Return True if the template writes earlier turns differently from how they were sampled."""
        return self.find(kind, kwargs).rewrites(reasoning=reasoning)

    def find(self, kind: str, kwargs: Mapping[str, object] | None = None) -> KindReport:
        """Return the finding on a kind; a kind without probes counts as unproven."""
        found = self._findings(kwargs or {})
        if kind not in found:
            if not can_try(kind):
                return UNPROVEN
            with self._proving:
                if kind not in found:
                    found[kind] = prove(self._renderer, kind, kwargs or {})
        return found[kind]

    def _findings(self, kwargs: Mapping[str, object]) -> dict[str, KindReport]:
        key = (self._renderer.marker_ids, json.dumps(kwargs, sort_keys=True, default=repr))
        found = self._found.get(key)
        if found is not None:
            return found
        with self._making_room:
            if len(self._found) >= VARIABLES_CACHED:
                self._found.pop(next(iter(self._found)))
            return self._found.setdefault(key, {})


def audit(renderer: Renderer) -> TemplateAudit:
    """Audit the renderer's template. A refusal by the template is a finding, not an error."""
    return TemplateAudit(renderer)


def _report(renderer: Renderer, kinds: Mapping[str, KindReport], systems: Systems) -> AuditReport:
    show = partial(try_render, renderer, kwargs={})
    return AuditReport(
        closes_turns=_closes_turns(renderer),
        stop_tokens=renderer.stop_tokens,
        tools="probe_tool" in show([USER], PROBE_TOOLS, generation_prompt=True),
        parallel_calls=_shows_all_calls(renderer),
        reasoning=THOUGHT in show([USER, reply_message(Reply(ANSWER, THOUGHT, ()))], None),
        opens_think=show([USER], None, generation_prompt=True).rstrip().endswith("<think>"),
        nine_letter_ids=_wants_nine_characters(renderer),
        history_kwargs=_history_kwargs(renderer, kinds["user"]),
        hidden=hidden_from_model(renderer, kinds),
        images=shows_images(renderer),
        missing_stops=missing_stops(renderer, kinds),
        systems=systems,
        kinds=kinds,
    )


def _closes_turns(renderer: Renderer) -> bool:
    said = try_render(renderer, [USER, {"role": "assistant", "content": ANSWER}], None, {})
    after = said.rpartition(ANSWER)[2]
    return not said or any(token in after for token in renderer.stop_tokens)


def _shows_all_calls(renderer: Renderer) -> bool:
    calling = [USER, reply_message(Reply("", "", calls_of("parallel_tools")))]
    written = try_render(renderer, calling, PROBE_TOOLS, {})
    return -1 < written.find("first lantern") < written.find(VALUE)


def _wants_nine_characters(renderer: Renderer) -> bool:
    def takes(call_id: str) -> bool:
        call = ToolCall(call_id, "probe_tool", "{}")
        result = {"role": "tool", "content": "x", "tool_call_id": call_id, "name": "probe_tool"}
        messages = [USER, reply_message(Reply("", "", (call,))), result]
        return bool(try_render(renderer, messages, PROBE_TOOLS, {}, True))

    return takes("probe0001") and not takes("call_0123456789abcdef00")


def _history_kwargs(renderer: Renderer, user: KindReport) -> dict[str, bool]:
    if user.keeps_reasoning or user.method == "fork":
        return {}
    probe = list(probes("user", {}, reasoning=True, shows_calls=True))[1].continuation
    for name, value in HISTORY_KWARGS:
        full = whole(renderer, probe, {name: value})
        if full and THOUGHT in full and "an older thought" in full:
            return {name: value}
    return {}

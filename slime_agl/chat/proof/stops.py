"""Find missing stop tokens: those that a template writes at the end of a turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slime_agl.chat.proof.probes import ANSWER, THOUGHT, USER, VALUE, calls_of, probes
from slime_agl.chat.proof.proofs import prove, try_render
from slime_agl.chat.proof.report import KindReport, MissingStop
from slime_agl.chat.template.messages import Reply, reply_message
from slime_agl.chat.template.renderer import Renderer
from slime_agl.chat.template.seams import BEHIND
from slime_agl.chat.template.shape import PROBE_TOOLS
from slime_agl.chat.template.tail import Fork, written_around

# Every agent sends these. Other kinds may fork for lack of a stop token by design.
_USUAL = ("user", "tool", "parallel_tools", "tool_then_user", "call_then_user")
_REASONS = ("no_marker", BEHIND)
FIRST_TRIED = 4


def missing_stops(renderer: Renderer, kinds: Mapping[str, KindReport]) -> tuple[MissingStop, ...]:
    """Find tokens that, as stop tokens, let kinds extend that now fork. Each is tried.

    Tokens that also occur within a turn, between calls or after reasoning, are excluded: they would cut the turn.
    """
    suspects = [kind for kind in _USUAL if kinds[kind].method == "fork" and kinds[kind].reason in _REASONS]
    if not suspects:
        return ()
    within, whole, found = _within_turns(renderer), renderer, dict[int, list[str]]()
    for kind in suspects:
        for token in _after_turn(renderer, kind):
            tried = whole if token in found else whole.with_stop_ids([token])
            if token not in within and prove(tried, kind, {}).method != "fork":
                whole = tried
                found.setdefault(token, []).append(kind)
                break
    return tuple(MissingStop(renderer.decode([token]), token, tuple(mended)) for token, mended in found.items())


def _after_turn(renderer: Renderer, kind: str) -> Iterator[int]:
    """Yield the first added tokens between the end of a turn and the new messages."""
    probe = next(probes(kind, {}, reasoning=False, shows_calls=True))
    written = written_around(renderer, probe.continuation, "real")
    if isinstance(written, Fork):
        return
    after = written[1]
    ends = [at for _, word in probe.news if (at := after.find(word)) >= 0]
    yield from list(dict.fromkeys(renderer.added_ids(after[: min(ends, default=0)])))[:FIRST_TRIED]


def _within_turns(renderer: Renderer) -> frozenset[int]:
    """Return the added tokens that a template writes between the reasoning, calls and text of one turn."""
    thought_and_said = try_render(renderer, [USER, reply_message(Reply(ANSWER, THOUGHT, ()))], None, {})
    thought_and_called = try_render(
        renderer, [USER, reply_message(Reply("", THOUGHT, calls_of("tool")))], PROBE_TOOLS, {}
    )
    called_twice = try_render(
        renderer, [USER, reply_message(Reply("", "", calls_of("parallel_tools")))], PROBE_TOOLS, {}
    )
    pieces = (
        _between(thought_and_said, THOUGHT, ANSWER),
        _between(thought_and_called, THOUGHT, VALUE),
        _between(called_twice, "first lantern", VALUE),
    )
    return frozenset(token for piece in pieces for token in renderer.added_ids(piece))


def _between(text: str, begin: str, end: str) -> str:
    _, found, after = text.partition(begin)
    piece, ended, _ = after.partition(end)
    return piece if found and ended else ""

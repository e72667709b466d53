"""Format the figures as a table, for the terminal or the README."""

from __future__ import annotations

from collections.abc import Mapping

from bench import frame
from bench.rounds import Figures

NAMES = {
    "ours": "slime_agl",
    "rerender": "render and encode again",
    "empty": "empty proxy (the limit)",
    "other": "the other checkout",
}
ROWS = (
    ("turns/s on one core, 64 sessions at once", "rate", "{:.0f}", True),
    ("CPU per turn there, ms", "cpu", "{:.3f}", False),
    ("added latency per turn, one at a time, p50 ms", "added", "{:.2f}", False),
    ("turns/s on one core, 512 sessions at once", "crowd_rate", "{:.0f}", True),
    ("CPU per turn there, ms", "crowd_cpu", "{:.3f}", False),
    ("CPU of one 50-turn session that grows to 32k tokens, ms", "long_cpu", "{:.0f}", False),
    ("memory per 1000 turns kept in 10-turn sessions, MiB", "held", "{:.1f}", False),
    ("errors", "errors", "{:d}", None),
)


def cells(figures: Mapping[str, Figures]) -> list[list[str]]:
    """Return header and rows; every other subject's figure is followed by its ratio to ours."""
    names = [name for name in NAMES if name in figures]
    out = [["", *(NAMES[name] for name in names)]]
    for title, field, form, more_is_better in ROWS:
        ours = getattr(figures["ours"], field) if "ours" in figures else None
        row = [title]
        for name in names:
            value = getattr(figures[name], field)
            text = form.format(value)
            if ours and value > 0 and name != "ours" and more_is_better is not None:
                text += f" ({ours / value if more_is_better else value / ours:.3g}x)"
            row.append(text)
        out.append(row)
    return out


def table(figures: Mapping[str, Figures]) -> str:
    return f"{frame.table(cells(figures))}\nin brackets: how many times as good slime_agl is"


def markdown(figures: Mapping[str, Figures]) -> str:
    return frame.markdown(cells(figures))

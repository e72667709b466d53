"""The README's picture of the road of one execution, as SVG for a light and for a dark page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

THEMES: dict[str, dict[str, str]] = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "line": "#8c959f",
        "box": "#f6f8fa",
        "edge": "#d1d9e0",
        "ours": "#ddf4ff",
        "ours_edge": "#54aeff",
        "sampled": "#4ac26b",
        "on_sampled": "#0b3d1c",
        "glue": "#e0e4e8",
    },
    "dark": {
        "ink": "#f0f6fc",
        "soft": "#9198a1",
        "line": "#656c76",
        "box": "#151b23",
        "edge": "#3d444d",
        "ours": "#0c2d4f",
        "ours_edge": "#1f6feb",
        "sampled": "#2ea043",
        "on_sampled": "#ffffff",
        "glue": "#2f353d",
    },
}
WIDTH, HEIGHT = 1000, 396
BOX, GAP, TOP, TALL = 136, 80, 8, 64

# What an execution passes, left to right: name, what it is, whether it is this package.
STOPS = (
    ("slime", "gives a row", False),
    ("runner", "Agent Lightning's", True),
    ("your agent", "unmodified", False),
    ("gateway", "address per attempt", True),
    ("SGLang", "behind its router", False),
)
# What goes to the right between two stops, and what comes back.
PASSED = (("task", "Samples"), ("endpoint", "reward"), ("messages", "text, calls"), ("ids", "ids, logp"))
# A conversation as one sequence: text, part of the width, its loss mask; none for what the next request adds.
SEQUENCE = (
    ("system, tools, user", 0.25, "0"),
    ("turn 1: a tool call", 0.21, "1"),
    ("tool result", 0.16, "0"),
    ("turn 2: the answer", 0.21, "1"),
    ("next message", 0.17, ""),
)
# From the sequence to the trainer.
ENDS = (
    ("segments", "one per sequence that only grew"),
    ("credit", "rewards to turns and Samples"),
    ("Samples", "one shared rollout_id"),
    ("slime's trainer", "the loss counts an execution once"),
)


def svg(theme: str) -> str:
    """The picture for a page of this theme."""
    c = THEMES[theme]
    body = "\n".join([*_stops(c), *_sequence(c), *_ends(c)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="14">\n'
        "<title>The road of one execution</title>\n"
        "<desc>slime gives a row to a runner, which runs the agent. The agent calls the gateway, which sends exact ids "
        "to SGLang and keeps the ids that come back. Sampled ids train; everything between them is masked. Segments of "
        "that sequence become Samples with credit, for slime's trainer.</desc>\n"
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{c["line"]}"/></marker></defs>\n{body}\n</svg>\n'
    )


def _stops(c: dict[str, str]) -> Iterable[str]:
    for at, (name, what, ours) in enumerate(STOPS):
        left = at * (BOX + GAP)
        yield _box(c, left, TOP, BOX, TALL, name, what, ours=ours)
        if at < len(PASSED):
            there, back = PASSED[at]
            start, end = left + BOX + 6, left + BOX + GAP - 6
            middle, y = (start + end) / 2, TOP + TALL / 2
            yield _arrow(c, start, y - 9, end, y - 9) + _text(c, middle, y - 17, there, "soft", 12)
            yield _arrow(c, end, y + 11, start, y + 11) + _text(c, middle, y + 28, back, "soft", 12)


def _sequence(c: dict[str, str]) -> Iterable[str]:
    top, tall = 158, 46
    gateway = 3 * (BOX + GAP) + BOX / 2
    yield _arrow(c, gateway, TOP + TALL + 8, gateway, top - 26)
    yield _text(c, gateway + 12, TOP + TALL + 30, "commits each turn", "soft", 12, "start")
    yield _text(c, 0, top - 14, "ledger", "ink", 15, "start", bold=True)
    yield _text(c, 58, top - 14, "the next prompt is these ids, and the ids of what is new", "soft", 13, "start")
    left = 0.0
    for text, part, mask in SEQUENCE:
        width, middle = part * WIDTH, left + part * WIDTH / 2 - 2
        fill, ink = (c["sampled"], c["on_sampled"]) if mask == "1" else (c["glue"], c["ink"])
        look = f'fill="{fill}"' if mask else f'fill="none" stroke="{c["line"]}" stroke-dasharray="5 4"'
        yield f'<rect x="{left + 1:g}" y="{top}" width="{width - 6:g}" height="{tall}" rx="5" {look}/>'
        yield _text(c, middle, top + 28, text, ink if mask else "soft", 13)
        yield _text(c, middle, top + tall + 18, mask, "soft", 12)
        left += width
    words = "loss mask: 1 = sampled by the engine, with its own logprob; 0 = shown to it"
    yield _text(c, 0, top + tall + 42, words, "soft", 12, "start")


def _ends(c: dict[str, str]) -> Iterable[str]:
    top, tall, gap = 322, 64, 40
    width = (WIDTH - 3 * gap) / 4
    yield _arrow(c, width / 2, top - 56, width / 2, top - 8)
    for at, (name, what) in enumerate(ENDS):
        left = at * (width + gap)
        yield _box(c, left, top, width, tall, name, what, ours=at < 3)
        if at < len(ENDS) - 1:
            yield _arrow(c, left + width + 6, top + tall / 2, left + width + gap - 6, top + tall / 2)


def _box(
    c: dict[str, str], left: float, top: float, width: float, tall: float, name: str, what: str, *, ours: bool
) -> str:
    fill, edge = (c["ours"], c["ours_edge"]) if ours else (c["box"], c["edge"])
    middle = left + width / 2
    return (
        f'<rect x="{left + 1:g}" y="{top:g}" width="{width - 2:g}" height="{tall:g}" rx="8" fill="{fill}" '
        f'stroke="{edge}"/>'
        + _text(c, middle, top + tall / 2 - 5, name, "ink", 15, bold=True)
        + _text(c, middle, top + tall / 2 + 16, what, "soft", 12)
    )


def _arrow(c: dict[str, str], x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{c["line"]}" stroke-width="1.5" '
        'marker-end="url(#tip)"/>'
    )


def _text(
    c: dict[str, str], x: float, y: float, text: str, ink: str, size: int, anchor: str = "middle", *, bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{c.get(ink, ink)}" font-size="{size}" text-anchor="{anchor}"{weight}>'
        f"{escape(text, quote=False)}</text>"
    )

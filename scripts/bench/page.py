"""Time how long the page of a run takes to open in headless Chromium."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from bench.browser import tab
from bench.made_run import write_run
from slime_agl.record.reading import read_run
from slime_agl.report.page import write_page
from slime_agl.report.summary import readable

# Milliseconds from navigation: to the first paint, to the whole page drawn, to its load event.
OPENING = """(() => {
  const of = (type, name) => performance.getEntriesByType(type).find((one) => !name || one.name === name);
  const painted = of("paint", "first-contentful-paint")?.startTime ?? 0;
  return [painted, of("mark", "drawn").startTime, of("navigation").loadEventEnd];
})()"""
# Milliseconds until a change is painted.
TIMED = """new Promise((done) => {
  const began = performance.now();
  %s;
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
})"""
ACTIONS = {
    "open an execution": "select(executions[Math.floor(executions.length / 2)])",
    "compare two": "compareNext()",
    "filter by reward": "byId('low').value = 0.5; filter()",
    "search everything said": "byId('low').value = ''; byId('search').value = 'shipment'; filter()",
}


async def measure(page: Path, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        async with tab() as browser:
            await browser.open(page.as_uri())
            for name, value in zip(("first paint", "drawn", "loaded"), await browser.value(OPENING), strict=True):
                found.setdefault(name, []).append(value)
            for name, action in ACTIONS.items():
                found.setdefault(name, []).append(await browser.value(TIMED % action))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench/page", description=__doc__)
    parser.add_argument("--executions", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=100_000, help="of all executions together")
    parser.add_argument("--rounds", type=int, default=3, help="each in a browser of its own; medians are shown")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the record and page.html here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slime-agl-page-") as scratch:
        folder = options.keep or Path(scratch)
        write_run(folder / "run", executions=options.executions, tokens=options.tokens)
        began = time.monotonic()
        pairs, _ = readable(read_run(folder / "run"))
        read = time.monotonic()
        write_page(folder / "page.html", pairs, title="a made run")
        written = time.monotonic()
        tokens = sum(
            len(turn.new_ids) + turn.output_length for _, execution in pairs for turn in execution.ledger.turns
        )
        size = (folder / "page.html").stat().st_size
        print(f"{len(pairs)} executions, {tokens:,} tokens, page of {size / 1e6:.1f} MB")
        told = {"read the record": [1000 * (read - began)], "write the page": [1000 * (written - read)]}
        for name, values in (told | asyncio.run(measure(folder / "page.html", options.rounds))).items():
            print(f"  {name:26}{statistics.median(values):8.0f} ms")


if __name__ == "__main__":
    main()

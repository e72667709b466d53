"""Run the gateway benchmark and print the table."""

from __future__ import annotations

import argparse
import asyncio.base_events
import inspect
import logging
import statistics
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

from bench import frame, sessions
from bench.material import write_material
from bench.rounds import QUICK, THOROUGH, Figures, measure
from bench.table import markdown, table

# Text for agents and tools.
SOURCES = [argparse, inspect, logging, subprocess, tempfile, typing, asyncio.base_events, statistics]


def main() -> None:
    parser = frame.options("gateway", __doc__)
    parser.add_argument("--only", choices=["ours", "empty", "rerender"], action="append", help="measure only these")
    parser.add_argument("--other", type=Path, metavar="DIR", help="measure another checkout of this project beside it")
    options = parser.parse_args()
    scale = QUICK if options.quick else THOROUGH
    with tempfile.TemporaryDirectory(prefix="slime-agl-bench-") as folder:
        material = write_material(Path(folder), SOURCES, small=options.quick)
        subjects = options.only or ["ours", "rerender", "empty"]
        figures: dict[str, Figures] = measure(
            material, subjects, scale, 1 if options.quick else options.rounds, options.other
        )
    print((markdown if options.markdown else table)(figures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["sessions"]:
        sessions.main(sys.argv[2:])
    else:
        main()

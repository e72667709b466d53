"""The long form: `python -m tests.oracle --programs 4000 --seed 1`. Exit status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from slime_agl.errors import SlimeAglError
from tests.oracle.checker import Findings
from tests.oracle.direct import run_family
from tests.oracle.families import NAMES, NOT_INSTALLED, family
from tests.oracle.through_slime import MODES, run_steps

SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000, help="programs over all families")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", choices=NAMES, action="append", help="only this one; may be repeated")
    parser.add_argument("--only", type=int, metavar="N", help="only program N of each family")
    parser.add_argument("--history", choices=("append", "template"), default="append")
    parser.add_argument("--steps", type=int, default=0, help="also run so many steps of `generate` in each mode")
    given = parser.parse_args()
    names = given.family or list(NAMES)
    each = max(1, round(given.programs / len(names)))
    numbers = range(given.only, given.only + 1) if given.only is not None else range(each)
    total, began = Findings(), time.monotonic()
    print(HEAD)
    for name in names:
        try:
            found = asyncio.run(run_family(family(name), numbers, given.seed, history=given.history))
        except NOT_INSTALLED as missing:
            print(f"{name:22} skipped: {missing}")
            continue
        print(line(name, found), flush=True)
        total.add(found)
    for mode in MODES if given.steps else ():
        found = run_steps(mode, given.steps, given.seed)
        print(line(f"generate, {mode}", found), flush=True)
        total.add(found)
    print(line("all", total))
    for fault in total.faults[:SHOWN]:
        print(fault)
    print(f"seed {given.seed}, {time.monotonic() - began:.0f} s, {len(total.faults)} wrong")
    return bool(total.faults)


HEAD = (
    f"{'family':22}{'programs':>9}{'calls':>8}{'refused':>8}{'turns':>8}{'sampled':>9}{'trained':>9}{'samples':>8}"
    f"{'wrong':>6}  forks"
)


def line(name: str, found: Findings) -> str:
    forks = ", ".join(f"{reason} {count}" for reason, count in found.forks.most_common())
    return (
        f"{name:22}{found.programs:9}{found.calls:8}{found.refused:8}{found.turns:8}{found.sampled:9}{found.trained:9}"
        f"{found.samples:8}{len(found.faults):6}  {forks}"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SlimeAglError as error:
        sys.exit(f"{type(error).__name__}: {error}")

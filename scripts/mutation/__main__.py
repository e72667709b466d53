"""Break one place of the product at a time, in a copy, and expect the named test to fail.

Exit status 1 if a fault goes undetected or a test fails without one, 2 if a fault no longer matches the source.
"""

from __future__ import annotations

import argparse
import sys
import time

from scripts.mutation.copy import FAILED, HUNG, Copy, copied
from scripts.mutation.faults import FAULTS, Misplaced

LIMIT_SECONDS = 60.0
WIDTH = max(map(len, FAULTS)) + 2
VERDICTS = {FAILED: "caught", HUNG: "SURVIVED (its test hangs)", 0: "SURVIVED"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; all without any")
    parser.add_argument("--list", action="store_true", help="print the faults and their tests")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS", help="of one fault's test")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in FAULTS]:
        parser.error(f"there is no fault {unknown[0]!r}; --list shows them")
    names = given.names or list(FAULTS)
    if given.list:
        print("\n".join(f"{name:{WIDTH}}{FAULTS[name].file:44}{FAULTS[name].test}" for name in names))
        return 0
    with copied() as copy:
        for name in names:  # before any test runs
            with copy.broken(FAULTS[name]):
                pass
        if not _tests_pass(copy, names, given.limit):
            return 1
        return _break(copy, names, given.limit)


def _tests_pass(copy: Copy, names: list[str], limit: float) -> bool:
    tests = list(dict.fromkeys(FAULTS[name].test for name in names))
    status, output = copy.run(tests, limit * len(tests))
    print(f"{len(tests)} tests without a fault: {'pass' if status == 0 else 'FAIL'}", flush=True)
    if status:
        print(output)
    return status == 0


def _break(copy: Copy, names: list[str], limit: float) -> int:
    survived = 0
    for name in names:
        began = time.monotonic()
        with copy.broken(FAULTS[name]):
            status, output = copy.run([FAULTS[name].test], limit)
        verdict = VERDICTS.get(status, f"NOT RUN (pytest exit status {status})")
        survived += verdict != "caught"
        print(f"{name:{WIDTH}}{verdict:28}{time.monotonic() - began:5.1f} s  {FAULTS[name].test}", flush=True)
        if verdict.startswith("NOT RUN"):
            print(output)
    print(f"{len(names) - survived} of {len(names)} faults caught")
    return int(survived > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Misplaced as error:
        print(f"scripts/mutants: {error}", file=sys.stderr)
        sys.exit(2)

"""Run the parts and print the table. Exit status 1 if a promise is broken."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # forks follow
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from chaos_parts import agents, answers, fleet, intruders, kills, soak, workers
from chaos_parts.outcome import Outcome
from chaos_parts.report import complaints, details, table
from chaos_parts.setting import Setting
from chaos_parts.trials import Trial, conduct
from slime_agl.chat.template.loader import load_tokenizer
from slime_agl.testing import save_tiny_checkpoint

PARTS = {
    "engine": answers.trials,
    "agents": agents.trials,
    "kills": kills.trials,
    "fleet": fleet.trials,
    "intruders": intruders.trials,
    "workers": workers.trials,
    "nodes": workers.node_trials,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description="No fault trains a wrong token, no fault ends the run."
    )
    parser.add_argument("--quick", action="store_true", help="the short form, under a minute on two cores")
    parser.add_argument(
        "--soak", type=int, default=0, metavar="STEPS", help="many steps with every kind of agent, instead of the parts"
    )
    parser.add_argument("--workers", type=int, default=0, help="worker processes that a soak's agents run in")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART[:FAULT]", help="a part, or one fault of it; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="print parts and faults, and end")
    parser.add_argument("--jobs", type=int, default=3, help="trials at a time")
    parser.add_argument("--markdown", action="store_true", help="print the table for the README")
    parser.add_argument(
        "--verbose", action="store_true", help="print faults and errors by kind, and each trial as it ends"
    )
    parser.add_argument("--keep", metavar="DIRECTORY", help="leave records and logs there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slime-agl-chaos-") as temporary:
        root = Path(options.keep or temporary)
        root.mkdir(parents=True, exist_ok=True)
        return run(options, root)


def run(options: argparse.Namespace, root: Path) -> int:
    logging.basicConfig(level=logging.WARNING)
    checkpoint = save_tiny_checkpoint(root / "checkpoint")
    tokenizer = load_tokenizer(str(checkpoint))
    setting = Setting(options.seed, options.quick, checkpoint, tokenizer, options.soak, options.workers)
    parts = {"soak": soak.trials} if options.soak else PARTS
    trials = chosen([trial for make in parts.values() for trial in make(setting)], options.only)
    if options.list:
        print("\n".join(f"{trial.part}:{kind}" for trial in trials for kind in trial.kinds))
        return 0
    if not trials:
        print(f"nothing is named {options.only}; --list prints what there is", file=sys.stderr)
        return 2
    began, found = time.monotonic(), {trial.part: Outcome() for trial in trials}
    for trial, outcome in conduct(trials, root, jobs=options.jobs, seconds=240.0 if options.quick else 7200.0):
        found[trial.part].add(outcome)
        if options.verbose:
            print(f"{'BROKEN' if outcome.broken else 'ok':6}  {trial.who}  {outcome.seconds:.1f} s", flush=True)
    if options.verbose:
        print(details(found))
    for note in (line for outcome in found.values() for line in outcome.notes):
        print(note)
    print(table(found, markdown=options.markdown))
    if broken := complaints(found, options.seed):
        print(broken)
    verdict = "a promise is broken" if broken else "every promise held"
    print(f"{verdict}; {time.monotonic() - began:.0f} s, seed {options.seed}")
    return 1 if broken else 0


def chosen(trials: list[Trial], only: list[str]) -> list[Trial]:
    """Select the trials of the named parts, or of one named fault alone."""
    if not only:
        return trials
    found = []
    for name in only:
        part, _, kind = name.partition(":")
        mine = [trial for trial in trials if trial.part == part]
        told = [trial for trial in mine if kind in trial.kinds]
        # An indivisible trial runs whole.
        found += [one for one in told[0].alone() or told[:1] if kind in one.kinds] if told else mine
    return found


if __name__ == "__main__":
    sys.exit(main())

"""Ray's command line as far as jobs go: `fake_ray.py FOLDER job VERB ...`. Ends as the file VERB of FOLDER says.

The file `status` has a line per call, the last for all further ones; `logs` is what to print, and a file `held` keeps
the log open until it is gone. Calls are told in the file `calls`, one JSON list a line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

folder, words = Path(sys.argv[1]), sys.argv[2:]
verb, name = words[1], words[words.index("--submission-id") + 1] if "--submission-id" in words else words[-1]
with (folder / "calls").open("a", encoding="utf-8") as calls:
    calls.write(json.dumps(words) + "\n")
if verb == "submit" and (folder / "refuses").exists():
    sys.exit("Connection refused")
if verb == "logs":
    sys.stdout.write((folder / "logs").read_text(encoding="utf-8"))
    sys.stdout.flush()
    (folder / "followed").touch()
    while (folder / "held").exists():
        time.sleep(0.02)
if verb == "status":
    states = (folder / "status").read_text(encoding="utf-8").splitlines()
    (folder / "status").write_text("\n".join(states[1:] or states), encoding="utf-8")
    if states[0] == "unreachable":
        sys.exit("no answer")
    ended = states[0] in ("succeeded", "failed", "was stopped")
    sys.stdout.write(f"Job '{name}' {states[0]}\n" if ended else f"Status for job '{name}': {states[0]}\n")

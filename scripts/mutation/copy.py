"""A copy of the working tree with one fault at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.mutation.faults import Fault, Misplaced

ROOT = Path(__file__).resolve().parents[2]
FAILED, HUNG = 1, -1


class Copy:
    """root: the copy's directory. Tests run in it, in forks of one process that has loaded the libraries."""

    def __init__(self, root: Path) -> None:
        self.root = root
        own = {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        self._environment = os.environ | own

    def __enter__(self) -> Copy:
        self._check_imports()
        self._warm = subprocess.Popen(
            [sys.executable, "-m", "scripts.mutation.warm"],
            cwd=self.root,
            env=self._environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._warm.stdin.close()
        self._warm.wait()
        self._warm.stdout.close()

    def run(self, tests: Sequence[str], seconds: float) -> tuple[int, str]:
        """Return pytest's exit status, HUNG after `seconds`, and its last lines."""
        self._warm.stdin.write(json.dumps({"tests": list(tests), "seconds": seconds}) + "\n")
        self._warm.stdin.flush()
        answer = json.loads(self._warm.stdout.readline())
        status = HUNG if answer["status"] is None else answer["status"]
        return status, "\n".join(answer["output"].strip().splitlines()[-15:])

    def _check_imports(self) -> None:
        """Raises Misplaced if the copy's tests would import another tree's package."""
        words = [sys.executable, "-c", "import slime_agl; print(slime_agl.__file__)"]
        found = subprocess.run(words, cwd=self.root, env=self._environment, capture_output=True, text=True, check=True)
        if not Path(found.stdout.strip()).is_relative_to(self.root):
            raise Misplaced(f"slime_agl is imported from {found.stdout.strip()}, not from the copy in {self.root}")

    @contextmanager
    def broken(self, fault: Fault) -> Iterator[None]:
        """Apply the fault in the copy. Raises Misplaced, see `Fault.applied`."""
        path = self.root / fault.file
        whole = path.read_text(encoding="utf-8")
        path.write_text(fault.applied(whole), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(whole, encoding="utf-8")


@contextmanager
def copied() -> Iterator[Copy]:
    """Copy all files of the working tree that git does not ignore to a temporary directory."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    with tempfile.TemporaryDirectory(prefix="slime-agl-mutants-") as folder:
        root = Path(folder).resolve()
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, root / name)
        with Copy(root) as copy:
            yield copy

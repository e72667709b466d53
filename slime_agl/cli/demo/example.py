"""Setup that both demos share: the example they run, and a clean end on signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click


def example_directory() -> Path:
    """Return examples/math_feedback, and put its parent on the import path for the agent.

    Raises:
        ClickException: the package does not stand in a clone of the repository.
    """
    import slime_agl

    examples = Path(slime_agl.__file__).parents[1] / "examples"
    example = examples / "math_feedback"
    if not (example / "agent.py").is_file():
        raise click.ClickException(f"{example} does not exist; the demo runs from a clone of the repository")
    sys.path.insert(0, str(examples))
    return example


def unwind_on_signals() -> None:
    """Unwind on SIGTERM as on Ctrl-C, so that the router and the engine end with this process.

    SIGINT is set too: a shell starts background jobs with it ignored.
    """

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

"""`slime-agl watch`: a terminal table of a run in progress."""

from __future__ import annotations

import io
import json
from pathlib import Path

from click.testing import CliRunner, Result
from rich.console import Console

from slime_agl.cli.main import main
from slime_agl.cli.watch.view import Board, refresh, sparkline
from slime_agl.record.following import Follower
from slime_agl.report.live import seen
from tests.report.test_following import execution, opened


def invoke(*words: str, columns: int = 140) -> Result:
    return CliRunner().invoke(main, ["watch", *words], env={"COLUMNS": str(columns)})


def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path):
    done = invoke(str(tmp_path / "later"))
    assert done.exit_code == 0 and "does not exist yet" in done.stdout
    assert "nothing is recorded there yet" in invoke(str(tmp_path)).stdout


def test_the_table_has_a_line_per_step_and_says_why_tokens_do_not_train(tmp_path: Path):
    for number, reward in enumerate((0.0, 1.0)):
        writer = opened(tmp_path / f"step-{number:06d}.jsonl", number)
        writer.write(execution(0, reward))
        writer.write(execution(1, reward, failure="agent_error", error="ValueError: \x1b]0;title\x07no"))
    shown = invoke(str(tmp_path)).stdout
    assert "step 0" in shown and "step 1" in shown and "reward ▁█  0.000 to 1.000" in shown
    assert "failed: agent_error 2" in shown and "tokens that do not train: agent_error 6" in shown
    assert "last error: ValueError: \\x1b]0;title\\x07no" in shown and "\x1b" not in shown
    assert "engine" in shown and "engine" not in invoke(str(tmp_path), columns=80).stdout.partition("reward")[2]


def test_figures_come_as_json(tmp_path: Path):
    opened(tmp_path / "step-000000.jsonl").write(execution(0))
    done = invoke(str(tmp_path), "--json")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["reward"] == 1.0 and done.exit_code == 0


def test_one_file_can_be_watched(tmp_path: Path):
    path = tmp_path / "step-000000.worker-3.jsonl"
    opened(path).write(execution(0))
    assert '"name":"step-000000.worker-3"' in invoke(str(path), "--json").stdout


def test_the_board_follows_the_run_until_it_is_interrupted(tmp_path: Path):
    writer = opened(tmp_path / "step-000000.jsonl")
    frames, output = [], io.StringIO()
    console = Console(file=output, width=120, height=40, force_terminal=True)

    def wait() -> None:
        frames.append(output.getvalue())
        output.truncate(0)
        if len(frames) == 3:
            raise KeyboardInterrupt
        writer.write(execution(len(frames), reward=float(len(frames) - 1)))

    board = Board(tmp_path, Follower(tmp_path, seen, steps=5))
    try:
        refresh(board, wait, console)
    except KeyboardInterrupt:
        pass
    assert "0.000" not in frames[0] and "0.000" in frames[1] and "0.500" in frames[2]


def test_a_terminal_that_is_too_low_shows_the_newest_steps(tmp_path: Path):
    for number in range(12):
        opened(tmp_path / f"step-{number:06d}.jsonl", number).write(execution(number))
    board = Board(tmp_path, Follower(tmp_path, seen, steps=20))
    board.update()
    console = Console(file=io.StringIO(), width=120, height=20)
    console.print(board.draw(0.0, *console.size))
    shown = console.file.getvalue()
    assert "step 11" in shown and "step 5" in shown and "step 4 " not in shown


def test_silence_after_the_end_is_told(tmp_path: Path):
    opened(tmp_path / "step-000000.jsonl").write(execution(0))
    board = Board(tmp_path, Follower(tmp_path, seen, steps=20))
    board.update()
    written = (tmp_path / "step-000000.jsonl").stat().st_mtime
    for later, told in ((30, False), (3600, True)):
        console = Console(file=io.StringIO(), width=200)
        console.print(board.draw(written + later, 200))
        assert ("has ended, or is stuck" in console.file.getvalue()) == told


def test_a_sparkline_spans_its_values():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█" and sparkline([2.0, 2.0]) == "▁▁"

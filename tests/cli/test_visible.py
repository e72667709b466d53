"""No view prints terminal controls, or parses markup, from models, agents, records or logs."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slime_agl.chat.proof.report import AuditReport, KindReport
from slime_agl.cli.audit import view as audit_view
from slime_agl.cli.check import view as check_view
from slime_agl.cli.demo import report as demo_report
from slime_agl.cli.inspect import view as inspect_view
from slime_agl.cli.main import main
from slime_agl.cli.rerun import view as rerun_view
from slime_agl.cli.tasks import view as tasks_view
from slime_agl.cli.train_demo import report as train_demo_report
from slime_agl.cli.visible import json_line, make_log_visible, visible
from slime_agl.cli.watch import view as watch_view
from slime_agl.harness.validate import Tried
from slime_agl.record.following import Follower
from slime_agl.report.checks import Finding
from slime_agl.report.live import seen
from slime_agl.rerun.divergence import Divergence
from slime_agl.rerun.outcome import Outcome
from tests.report.made import TEXTS, made, run_of
from tests.report.test_following import execution as following_execution
from tests.report.test_following import opened

CLI = Path(audit_view.__file__).parents[1]
# Writes the clipboard, clears the screen by a C1 control, turns text round, hides it, is an odd tag and broken markup.
EVIL = "\x1b]52;c;AAAA\x07\x9b2J\u202eabc\u2066\u200b\U000e0041\x7f\r[/x][bold][link=http://x]\udc80"
WITNESS = "]52;c;AAAA"
# Format characters that are seen: signs around digits, of musical notation, hieroglyphs and shorthand.
SIGNS = {chr(code) for code in (*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD)}
SIGNS |= {chr(code) for code in (*range(0x13430, 0x13456), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B))}


def dangerous(text: str) -> set[str]:
    """Control and format characters, lone surrogates; neither line ends nor what writing systems need."""
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - set(
        "\n\t\u200c\u200d"
    )


@given(st.text())
def test_nothing_dangerous_is_left_and_everything_else_stays(text: str) -> None:
    assert not dangerous(visible(text))
    if not dangerous(text):
        assert visible(text) == text


@pytest.mark.parametrize(
    "code",
    [
        *range(9),
        *range(11, 32),
        *range(127, 160),
        0xAD,
        0x61C,
        *range(0x200B, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2060, 0x2070),
        0xFEFF,
        0xD800,
        0xE0041,
    ],
)
def test_every_control_is_written_out(code: int) -> None:
    if chr(code) not in "\u200c\u200d":
        assert visible(f"a{chr(code)}b").isascii() and len(visible(chr(code))) >= 4


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))
def test_json_says_the_same_without_them(value: Any) -> None:
    line = json_line(value)
    assert json.loads(line) == value and line.count("\n") == 1
    assert json_line({"a": "\udc80", "b": 1 << 80}) == '{"a": "\\udc80", "b": 1208925819614629174706176}\n'


def evil_execution(**facts: Any) -> Any:
    return made(
        EVIL,
        task={EVIL: EVIL},
        error=EVIL,
        rewards=((0, {EVIL: 1.0, "nan": None}),),
        versions=(EVIL,),
        spans=({"name": EVIL, "at": 0.0, "seconds": 0.0, "attributes": {EVIL: EVIL}},),
        blotted={f"turn {EVIL}": 1},
        **facts,
    )


def evil_record() -> Any:
    record = run_of(evil_execution(), evil_execution(failure=EVIL), name=f"step-{EVIL}")
    return dataclasses.replace(record, tokens={i: EVIL.encode("utf-8", "replace") for i in TEXTS})


def show_run() -> None:
    record = evil_record()
    inspect_view.show_run([(record, execution) for execution in record.executions])


def show_execution() -> None:
    record = evil_record()
    for execution in record.executions:
        inspect_view.show_execution(record, execution)


def show_outcomes() -> None:
    for kind in ("changed", "more", "early"):
        way = Divergence(
            kind=kind,
            attempt=0,
            turn=1,
            words=EVIL,
            token=1,
            recorded=EVIL,
            asked=EVIL,
            diff=("+++" + EVIL, "-" + EVIL, EVIL),
        )
        shared = {"step": EVIL, "name": EVIL, "turns": 1, "matched": 0, "attempts": (2, 1), "recorded_failure": EVIL}
        error = f'  File "{EVIL}"\n{EVIL}'
        for failure in (EVIL, "refused", ""):
            outcome = Outcome(
                **shared,
                failure=failure,
                error=error,
                rewards=({EVIL: 1.0},),
                recorded_rewards=({EVIL: EVIL},),
                divergence=way,
                seconds=0.0,
                blotted={f"turn {EVIL}": 1},
            )
            rerun_view.show_outcomes([outcome])


def show_findings() -> None:
    findings = [Finding(EVIL, verdict, EVIL) for verdict in ("pass", "look", "fail")]
    for as_json in (False, True):
        check_view.print_findings(findings, as_json=as_json)


def show_tasks() -> None:
    tried = [Tried(name=EVIL, path=EVIL, words=EVIL), Tried(name=EVIL, path=EVIL, oracle=1.0, empty=0.0)]
    for as_json, listed in ((False, False), (False, True), (True, False)):
        tasks_view.print_tasks(tried, as_json=as_json, listed=listed)


def show_audit() -> None:
    trips = {name: EVIL for name in ("call", "parallel_calls", "reasoning", "reasoning_and_call")}
    readers = {"tool_calls": EVIL, "reasoning": EVIL}
    found = audit_view.AuditFindings(model=EVIL, report=evil_audit(), history="append", readers=readers, trips=trips)
    audit_view.show(found)


def evil_audit() -> AuditReport:
    import dataclasses

    kinds = {}
    for mode in ("fork", "short", "real"):
        facts = {item.name: EVIL for item in dataclasses.fields(KindReport)} | {"mode": mode, "hides": ()}
        kinds[EVIL + mode] = SimpleNamespace(**facts, rewrites=lambda reasoning: reasoning)
    values: dict[str, Any] = {item.name: EVIL for item in dataclasses.fields(AuditReport)}
    return SimpleNamespace(
        **values
        | {
            "kinds": kinds,
            "history_kwargs": {EVIL: EVIL},
            "stop_tokens": (EVIL,),
            "hidden": (),
            "system_messages": lambda: EVIL,
            "missing_stops": (SimpleNamespace(token=EVIL, id=1, advice=lambda: EVIL),),
        }
    )


def show_demo(monkeypatch: Any, tmp_path: Path) -> None:
    tokenizer = SimpleNamespace(decode=lambda ids: EVIL)
    monkeypatch.setattr(demo_report, "load_tokenizer", lambda path: tokenizer)
    report = demo_report.DemoReport(None)
    report.started(Path(f"/{EVIL}"), EVIL, None)
    report._example = SimpleNamespace(
        tokens=[1, 2],
        response_length=1,
        loss_mask=[1],
        index=0,
        rollout_id=EVIL,
        reward={EVIL: 1},
        metadata={"agl": {"turns": 1}},
    )
    report.finish(1.0)
    report.broken(RuntimeError(EVIL))


def show_training(monkeypatch: Any, tmp_path: Path) -> None:
    report = train_demo_report.TrainReport(None)
    report.started(SimpleNamespace(target=None, title=EVIL), EVIL, 1, None)
    report.broken(RuntimeError(EVIL))
    report.finish()


def show_board(monkeypatch: Any, tmp_path: Path) -> None:
    writer = opened(tmp_path / "step-000000.jsonl", 0, agent=EVIL)
    writer.write(following_execution(0, failure=EVIL, error=EVIL))
    watch_view.print_once(watch_view.Board(tmp_path, Follower(tmp_path, seen, steps=5)))


VIEWS: dict[str, list[Callable[..., None]]] = {
    "inspect.view": [show_run, show_execution],
    "rerun.view": [show_outcomes],
    "check.view": [show_findings],
    "tasks.view": [show_tasks],
    "audit.view": [show_audit],
    "demo.report": [show_demo],
    "train_demo.report": [show_training],
    "watch.view": [show_board],
}
# They print what the user typed, what stands in this package, numbers of their own, or through one of the views.
NO_VIEWS = {
    "visible",
    "main",
    "inspect.command",
    "rerun.command",
    "audit.command",
    "train_demo.seeds",
    "doctor.command",
    "check.command",
    "engine",
    "waiting",
    "names",
    "guide",
    "markdown",
    "new.command",
    "watch.command",
}


def test_every_module_that_prints_is_here() -> None:
    """A new view has to be shown hostile text below."""
    words = ("rich.console", "rich.table", "rich.text", "click.echo", "click.secho", "stdout.write")
    printing = {
        ".".join(path.relative_to(CLI).with_suffix("").parts)
        for path in CLI.rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert printing - NO_VIEWS == VIEWS.keys()


@pytest.mark.parametrize("view", [view for views in VIEWS.values() for view in views])
@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_view_shows_hostile_text_and_obeys_none(
    view: Any, columns: str, capsys: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    view(*([monkeypatch, tmp_path] if view in (show_demo, show_training, show_board) else []))
    told = "".join(capsys.readouterr())
    assert not dangerous(told), {hex(ord(one)) for one in dangerous(told)}
    assert WITNESS in told.replace("\n", "") and "[/x]" in told.replace("\n", "")


def test_errors_and_notes_of_the_commands_are_visible(tmp_path: Path) -> None:
    evil = EVIL.replace("/", "|").encode("utf-8", "replace").decode()
    (tmp_path / f"{evil}.jsonl").write_bytes(b'{"format": "slime_agl.record", "version": 3}\n{\n')
    for words in (
        ["inspect", str(tmp_path)],
        ["inspect", str(tmp_path), "--execution", evil],
        ["rerun", str(tmp_path)],
    ):
        done = CliRunner().invoke(main, words)
        assert not dangerous(done.output) and WITNESS in done.output, words


def test_a_log_message_is_visible(monkeypatch: Any) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    monkeypatch.setattr(logging, "lastResort", handler)
    make_log_visible()
    handler.emit(logging.LogRecord("x", logging.WARNING, "", 0, "attempt failed\n%s", (EVIL,), None))
    assert not dangerous(written.getvalue()) and WITNESS in written.getvalue()

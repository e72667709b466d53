"""`slime-agl rerun`, as a user runs it on a recorded run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slime_agl.cli.main import main
from slime_agl.rollout import shutdown
from tests.cli import rerun_agents

AGENTS = "tests.cli.rerun_agents."
Record = Callable[..., Path]


@pytest.fixture
def record(run_rollout: Any, tmp_path: Path) -> Record:
    """Record a run of an agent of `rerun_agents`; returns agl.record_dir."""

    def run(agent: str, rows: list[Any], agl: dict[str, Any] | None = None, **more: Any) -> Path:
        section = {"record_dir": str(tmp_path / "run"), **(agl or {})}
        try:
            run_rollout(AGENTS + agent, rows, agl=section, **more)
        finally:
            shutdown()
        return tmp_path / "run"

    return run


@pytest.fixture
def adding(fake_sglang: Any, record: Record) -> Path:
    fake_sglang.call_tool("add", {"a": 1, "b": 2}).say("It is 3.")
    return record("adder", ["1 + 2?"])


def rerun(run: Path, *words: str) -> Any:
    return CliRunner().invoke(main, ["rerun", str(run), "--trust", *words], env={"COLUMNS": "100"})


def outcomes(run: Path, *words: str, status: int) -> list[dict[str, Any]]:
    done = rerun(run, "--json", *words)
    assert done.exit_code == status, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def edit(run: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change the lines of a record's only file."""
    (file,) = run.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_an_unchanged_agent_does_the_same(adding: Path) -> None:
    done = rerun(adding)
    assert done.exit_code == 0, done.output
    assert "2/2" in done.stdout and "1.000" in done.stdout
    assert "1 executions rerun: 1 same; 0 rewards changed" in done.stdout


def test_a_changed_tool_is_shown_where_its_result_first_differs(adding: Path) -> None:
    done = rerun(adding, "--agent", AGENTS + "miscounts")
    assert done.exit_code == 1
    shown = done.stdout
    assert "diverged" in shown and "1/2" in shown and "differs at turn 1" in shown
    assert "is '3' in the record, '4' in the rerun" in " ".join(shown.split())
    assert "\n-3\n+4\n" in shown and " <tool_response>" in shown
    unwrapped = " ".join(shown.split())
    assert "the agent gave up there" in unwrapped and "in use_tools" in unwrapped and "0 rewards changed" in unwrapped
    assert "adding" not in shown and "adding" in done.stderr


def test_json_tells_the_place_and_the_diff(adding: Path) -> None:
    (outcome,) = outcomes(adding, "--agent", AGENTS + "miscounts", status=1)
    assert (outcome["verdict"], outcome["matched"], outcome["turns"]) == ("diverged", 1, 2)
    found = outcome["divergence"]
    assert (found["kind"], found["turn"], found["recorded"], found["asked"]) == ("changed", 1, "3", "4")
    assert "-3" in found["diff"] and "+4" in found["diff"]
    assert (outcome["failure"], outcome["rewards"], outcome["recorded_rewards"]) == ("refused", None, [1.0])
    assert "BadRequestError" in outcome["error"] and "did not send it during the recorded run" in outcome["error"]


def test_branches_parallel_calls_and_siblings_get_their_own_answers_again(fake_sglang: Any, record: Record) -> None:
    fake_sglang.answer_with(lambda request: f"answer {request.index}")
    run = record("council", ["go"] * 2, n_samples=2)
    found = outcomes(run, status=0)
    assert [(one["verdict"], one["matched"], one["turns"]) for one in found] == [("same", 9, 9)] * 4
    assert all(one["rewards"] == one["recorded_rewards"] for one in found)


def test_a_failed_try_is_rerun_before_the_one_that_followed_it(fake_sglang: Any, record: Record) -> None:
    fake_sglang.say("a bad one").say("a good one")
    run = record("picky", ["x"], {"failure": "retry"})
    (outcome,) = outcomes(run, status=0)
    assert (outcome["verdict"], outcome["attempts"], outcome["recorded_attempts"]) == ("same", 2, 2)
    assert (outcome["matched"], outcome["turns"]) == (2, 2)


def test_an_agent_that_fails_no_more_is_noticed(fake_sglang: Any, record: Record, monkeypatch: Any) -> None:
    fake_sglang.answer_with(lambda request: "said")
    monkeypatch.setitem(rerun_agents.storms, "to come", 1)
    run = record("moody", ["x"], {"failure": "retry"})
    done = rerun(run)
    assert done.exit_code == 1
    assert "diverged" in done.stdout and "1/2" in done.stdout
    assert "2 attempts were recorded, the agent ended well in attempt 1" in done.stdout


def test_a_changed_reward_function_changes_the_reward(fake_sglang: Any, record: Record) -> None:
    fake_sglang.say("It is 3.")
    run = record("unpaid_adder", ["1 + 2?"], {"reward": AGENTS + "generous"})
    assert outcomes(run, status=0)[0]["rewards"] == [1.0]
    done = rerun(run, "--reward", AGENTS + "strict")
    assert done.exit_code == 1
    assert "1.000 → 0.500" in done.stdout and "1 same; 1 reward changed" in done.stdout


def test_a_reward_function_that_raises_is_shown_with_its_traceback(fake_sglang: Any, record: Record) -> None:
    fake_sglang.say("It is 3.")
    run = record("unpaid_adder", ["1 + 2?"], {"reward": AGENTS + "generous"})
    done = rerun(run, "--reward", AGENTS + "broken")
    assert done.exit_code == 1
    assert "1 failed" in done.stdout and "reward_error" in done.stdout and "KeyError: 'no such rubric'" in done.stdout


def test_rewards_of_slimes_options_are_given_again_from_the_row(fake_sglang: Any, record: Record) -> None:
    fake_sglang.say("It is 3.")
    rows = [{"prompt": "1 + 2?", "label": "3"}]
    run = record("unpaid_adder", rows, {"task": {"prompt": "prompt"}}, custom_rm_path=AGENTS + "house_rule")
    assert outcomes(run, status=0)[0]["rewards"] == [1.0]


def test_an_agent_that_stops_early_is_told_what_it_did_not_ask(adding: Path) -> None:
    (outcome,) = outcomes(adding, "--agent", AGENTS + "hasty", status=1)
    found = outcome["divergence"]
    assert (outcome["verdict"], outcome["matched"], found["kind"], found["turn"]) == ("diverged", 1, "early", 1)
    assert "-3" in found["diff"]
    assert "1 of 2 recorded turns were not requested" in found["words"]


def test_an_agent_that_asks_for_more_is_told_where_the_record_ends(fake_sglang: Any, record: Record) -> None:
    fake_sglang.answer_with(lambda request: "four")
    run = record("two_turns", ["x"])
    (outcome,) = outcomes(run, "--agent", AGENTS + "three_turns", status=1)
    found = outcome["divergence"]
    assert (outcome["matched"], found["kind"], found["turn"]) == (2, "more", 1)
    assert "+Go on.<|im_end|>" in found["diff"] and "2 turns recorded" in found["words"]


def test_an_agent_that_breaks_has_failed_and_its_traceback_is_shown(fake_sglang: Any, record: Record) -> None:
    fake_sglang.answer_with(lambda request: "four")
    done = rerun(record("two_turns", ["x"], {"failure": "retry"}), "--agent", AGENTS + "breaks")
    assert done.exit_code == 1
    assert "1 failed; 1 reward changed" in done.stdout and "1/2" in done.stdout and "1.000 → 0.000" in done.stdout
    assert "RuntimeError: the loop broke" in done.stdout and "recorded: ended well; rerun: agent_error" in done.stdout


def test_a_refusal_has_the_protocols_shape_and_is_not_repeated(fake_sglang: Any, record: Record) -> None:
    fake_sglang.answer_with(lambda request: "four")
    (outcome,) = outcomes(record("two_turns", ["x"]), "--agent", AGENTS + "undaunted", status=1)
    assert (outcome["verdict"], outcome["failure"], outcome["rewards"]) == ("diverged", "", [0.25])
    assert (outcome["divergence"]["kind"], outcome["divergence"]["turn"], outcome["matched"]) == ("changed", 0, 1)


def test_an_agent_that_never_ends_meets_the_deadline_that_the_user_gives(adding: Path) -> None:
    (outcome,) = outcomes(adding, "--agent", AGENTS + "sleeper", "--timeout", "0.2", status=1)
    assert (outcome["verdict"], outcome["failure"], outcome["matched"]) == ("failed", "deadline", 0)
    assert "longer than its 0.2 s" in outcome["error"]


def test_what_is_not_rerun_is_said(adding: Path) -> None:
    def score_groups(lines: list[dict[str, Any]]) -> None:
        lines[0]["arguments"] |= {"group_rm": True, "rollout_sample_hook_path": ["a.hook"]}
        lines[0]["arguments"]["sglang_model_routers"] = {"judge": ["127.0.0.1", 9]}

    edit(adding, score_groups)
    done = rerun(adding)
    assert done.exit_code == 0, done.output
    for words in ("--group-rm", "a.hook", "judge at http://127.0.0.1:9/v1"):
        assert words in done.stderr


def test_token_prompts_and_token_spans_rerun(fake_sglang: Any, record: Record) -> None:
    fake_sglang.answer_with(lambda request: "four")
    run = record("speller", ["x"], {"spans": "tokens"})
    (outcome,) = outcomes(run, status=0)
    assert outcome["matched"] == 2


def test_an_evaluation_reruns(fake_sglang: Any, record: Record) -> None:
    fake_sglang.answer_with(lambda request: "four")
    run = record("two_turns", ["a", "b"], evaluation=True)
    found = outcomes(run, status=0)
    assert [(one["step"], one["matched"]) for one in found] == [("eval-000000", 2)] * 2


def test_an_engine_that_failed_fails_again(fake_sglang: Any, record: Record) -> None:
    fake_sglang.say("four").fail_next(400)
    fake_sglang.answer_with(lambda request: "four")
    run = record("two_turns", ["x", "y"])
    found = outcomes(run, status=0)
    failed = [one for one in found if one["failure"] == "engine_error"]
    assert len(failed) == 1 and len(found) > 1 and "scripted failure" in failed[0]["error"]


def test_executions_are_chosen_by_name_and_step(fake_sglang: Any, record: Record) -> None:
    fake_sglang.answer_with(lambda request: "four")
    run = record("two_turns", ["a", "b", "c"])
    names = [one["name"] for one in outcomes(run, status=0)]
    chosen = outcomes(
        run, "--execution", names[2], "--execution", names[0].removeprefix("ro-"), "--step", "0", status=0
    )
    assert [one["name"] for one in chosen] == [names[0], names[2]]
    for words, told in (
        (("--execution", "nobody"), "no execution of"),
        (("--step", "7"), "3 executions of steps 0"),
        (("--failed",), "nothing to rerun"),
    ):
        done = rerun(run, *words)
        assert done.exit_code == 2 and told in done.stderr and done.stdout == ""


def test_a_missing_agent_is_named(adding: Path) -> None:
    done = rerun(adding, "--agent", AGENTS + "addder")
    assert done.exit_code == 2
    assert "has no 'addder'" in done.stderr and "Did you mean 'adder'?" in done.stderr


def test_a_torn_record_reruns_what_is_whole(fake_sglang: Any, record: Record) -> None:
    fake_sglang.answer_with(lambda request: "four")
    run = record("two_turns", ["a", "b"])
    (file,) = run.glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-100])
    done = rerun(run)
    assert done.exit_code == 0
    assert "an unfinished last line of" in done.stderr and "1 executions rerun" in done.stdout


def test_a_record_of_version_1_reruns_with_what_the_user_adds(fake_sglang: Any, record: Record, tmp_path: Path) -> None:
    def to_version_1(lines: list[dict[str, Any]]) -> None:
        lines[0] = {k: v for k, v in lines[0].items() if k not in ("agl", "arguments", "context_length")} | {
            "version": 1
        }
        for line in lines:
            for name in ("engine_errors", "earlier", "row"):
                line.get("execution", {}).pop(name, None)

    fake_sglang.say("It is 3.")
    run = record("unpaid_adder", ["1 + 2?"], {"reward": AGENTS + "generous"})
    edit(run, to_version_1)
    done = rerun(run)
    assert done.exit_code == 1 and "is of version 1, which does not record the agl: section" in done.stderr
    assert rerun(run, "--reward", AGENTS + "generous").exit_code == 0
    (tmp_path / "agl.yaml").write_text(f"agl: {{reward: {AGENTS}generous}}\n")
    assert rerun(run, "--config", str(tmp_path / "agl.yaml")).exit_code == 0


def test_another_tokenizer_is_refused(adding: Path) -> None:
    def rename_a_token(lines: list[dict[str, Any]]) -> None:
        next(line for line in lines if "tokens" in line)["tokens"][0][1] = "other"

    edit(adding, rename_a_token)
    done = rerun(adding)
    assert done.exit_code == 2 and "--model DIR" in done.stderr and "'other'" in done.stderr


def test_a_checkpoint_that_is_elsewhere_is_asked_for(adding: Path, tiny_checkpoint: Path) -> None:
    edit(adding, lambda lines: lines[0].update(checkpoint="/nowhere/model"))
    done = rerun(adding)
    assert done.exit_code == 2 and "/nowhere/model" in done.stderr and "--model DIR" in done.stderr
    assert rerun(adding, "--model", str(tiny_checkpoint)).exit_code == 0


def test_a_prompt_that_was_blotted_is_said_not_to_rerun_exactly(fake_sglang: Any, record: Record) -> None:
    secret = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    fake_sglang.answer_with(lambda request: "four")
    run = record("two_turns", [f"use {secret} for it"])
    shown = CliRunner().invoke(main, ["inspect", str(run), "--execution", "ro"], env={"COLUMNS": "300"}).stdout
    assert "credentials blotted out (***): " in shown and "cannot be rerun exactly" in shown and secret not in shown
    (outcome,) = outcomes(run, status=1)
    assert (outcome["verdict"], outcome["blotted"]) == ("diverged", {"task": 1, "turn 0 prompt": 1})
    done = rerun(run)
    assert "cannot be rerun exactly" in " ".join(done.stdout.split())


def test_the_former_name_of_the_command_still_works_and_is_not_shown() -> None:
    told = CliRunner().invoke(main, ["--help"]).output
    assert "rerun" in told and "replay" not in told
    assert CliRunner().invoke(main, ["replay", "--help"]).output == CliRunner().invoke(
        main, ["rerun", "--help"]
    ).output.replace("main rerun", "main replay")

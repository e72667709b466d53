"""The record of a run holds every token, survives a crash, and keeps no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentlightning import emit_reward
from agentlightning.litagent import rollout

from slime_agl.errors import AgentError, ConfigError, RecordError
from slime_agl.host import DynamicFilterOutput
from slime_agl.record.reading import read_record, read_run
from slime_agl.report.summary import row
from slime_agl.testing.agents import chat_agent
from tests.conftest import flat


@rollout
async def talks_of_its_key(task, llm):
    emit_reward(0.25)
    raise RuntimeError(f"no access with {llm.api_key}")


@pytest.fixture
def recorded(fake_sglang, run_rollout, tmp_path):
    def run(agent, rows, n_samples=1, **agl):
        agl = {"record_dir": str(tmp_path / "run"), **agl}
        output = run_rollout(agent, rows, rollout_id=7, n_samples=n_samples, agl=agl)
        (record,) = read_run(tmp_path / "run")
        return record, flat(output.samples)

    return run


def test_every_sample_can_be_rebuilt_from_the_record(fake_sglang, recorded):
    fake_sglang.answer_with(lambda request: "four")
    record, samples = recorded(chat_agent(turns=2), ["a", "b"], n_samples=2)
    assert (record.name, record.header["step"], record.torn) == ("step-000007", 7, 0)
    kept = {sample.index: (execution, sample) for execution in record.executions for sample in execution.samples}
    assert len(kept) == len(samples) == 4
    for sample in samples:
        execution, mine = kept[sample.index]
        segment = execution.segments[mine.segment]
        assert list(execution.ledger.ids(segment.turns[-1].index)) == sample.tokens
        assert list(mine.mask) == sample.loss_mask
        assert (mine.reward, mine.rollout_id, mine.group_index) == (1.0, sample.rollout_id, sample.group_index)
        assert execution.rewards[0][1] == {"primary": 1.0}
        spoken = "".join(record.texts(execution.ledger.turns[0].output_ids()))
        assert spoken == "four<|im_end|>"


def test_characters_that_several_tokens_share_stand_at_the_last_of_them(fake_sglang, recorded):
    fake_sglang.say("zwölf 世界 😀")
    record, _ = recorded(chat_agent(), ["a"])
    ids = record.executions[0].ledger.turns[0].output_ids()
    texts = record.texts(ids)
    assert "".join(texts) == "zwölf 世界 😀<|im_end|>"
    assert len(texts) == len(ids) and "" in texts
    assert "".join(record.texts(ids[:-3])).startswith("zwölf 世界 ")


@pytest.mark.parametrize("cut", [1, 200])
def test_a_torn_last_line_is_skipped_and_counted(fake_sglang, recorded, cut: int):
    fake_sglang.answer_with(lambda request: "four")
    record, _ = recorded(chat_agent(), ["a", "b"])
    whole = record.path.read_bytes()
    record.path.write_bytes(whole[:-cut])
    again = read_record(record.path)
    assert again.executions == record.executions[:1]
    assert again.torn == len(whole.splitlines(keepends=True)[-1]) - cut


def test_no_key_is_recorded(run_rollout, tmp_path):
    with pytest.raises(AgentError, match="no access with sk-agl-"):
        run_rollout(talks_of_its_key, ["a", "b"], agl={"record_dir": str(tmp_path)})
    (record,) = read_run(tmp_path)
    assert b"sk-agl" not in record.path.read_bytes()
    execution = record.executions[0]
    assert execution.failure == "agent_error" and "no access with ***" in execution.error
    assert [dimensions for _, dimensions in execution.rewards] == [{"primary": 0.25}]
    assert execution.blotted == {"error": 1}


SECRET = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"


def test_a_credential_in_a_prompt_stands_nowhere_in_the_record(fake_sglang, recorded):
    fake_sglang.answer_with(lambda request: "your key is " + SECRET)
    record, samples = recorded(chat_agent(), [f"clone it with {SECRET}, please; risk-adjusted-returns-2024"])
    (execution,) = record.executions
    assert SECRET not in record.path.read_text()
    assert execution.task["prompt"] == "clone it with ***, please; risk-adjusted-returns-2024"
    (turn,) = execution.ledger.turns
    prompt, answer = ("".join(record.texts(ids)) for ids in (turn.new_ids, turn.output_ids()))
    assert (
        SECRET not in prompt + answer and "clone it with" in prompt and "please; risk-adjusted-returns-2024" in prompt
    )
    assert execution.blotted == {"messages": 2, "task": 1, "turn 0 prompt": 1, "turn 0 output": 1}
    (sample,) = samples
    assert len(sample.tokens) == execution.ledger.length(0) and min(sample.tokens) >= 0


def test_only_its_owner_may_read_a_record(fake_sglang, recorded, tmp_path):
    fake_sglang.answer_with(lambda request: "four")
    record, _ = recorded(chat_agent(), ["a"])
    assert (record.path.stat().st_mode & 0o777, record.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    record.path.chmod(0o644)
    record, _ = recorded(chat_agent(), ["a"])
    assert record.path.stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_place_of_a_record_is_not_followed(fake_sglang, recorded, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run" / "step-000007.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="step-000007.jsonl cannot be written"):
        recorded(chat_agent(), ["a"])
    assert (tmp_path / "precious").read_text() == "precious"


@rollout
async def raises_odd_text(task, llm):
    raise RuntimeError("\udc80 \x1b]52;c;AAAA\x07")


def test_text_that_is_no_unicode_does_not_stop_the_run(run_rollout, tmp_path):
    row = {"prompt": "a", "metadata": {"name": "\udcff", "big": 1 << 90, "deep": nested(400)}}
    with pytest.raises(AgentError):
        run_rollout(raises_odd_text, [row], agl={"record_dir": str(tmp_path)})
    (execution,) = read_run(tmp_path)[0].executions[:1]
    assert execution.task["name"] == "\\udcff" and "\\udc80" in execution.error


def nested(levels):
    value = "bottom"
    for _ in range(levels):
        value = [value]
    return value


def test_what_is_no_record_is_refused(tmp_path: Path):
    other = tmp_path / "step-000000.jsonl"
    for text, words in (
        (b'{"format": "slime_agl.record", "version": 5}\n', "version 5.*reads 'slime_agl.record' versions 1, 2, 3, 4"),
        (b"hello\n", "line 1 is not JSON"),
        (b"[]\n", "line 1 is a list"),
        (b"", "holds no whole line"),
        (b'{"format": "slime_agl.record", "version": 1, "agl": 5}\n', "line 1: header is int, dict was expected"),
        (b'{"format": "slime_agl.record", "version": 3, "step": "0"}\n', "line 1: step is str, int was expected"),
    ):
        other.write_bytes(text)
        with pytest.raises(RecordError, match=words):
            read_run(tmp_path)
    other.unlink()
    with pytest.raises(RecordError, match="agl.record_dir"):
        read_run(tmp_path)
    with pytest.raises(RecordError, match="No such file"):
        read_run(other)


def test_a_directory_that_cannot_be_made_is_named(run_rollout, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="agl.record_dir.*file"):
        run_rollout(chat_agent(), ["a"], agl={"record_dir": str(tmp_path / "file" / "run")})


def test_a_failed_try_is_recorded_with_its_tokens_and_its_traceback(fake_sglang, recorded):
    fake_sglang.say("one")
    record, _ = recorded("tests.cli.rerun_agents.picky", ["a"])
    assert record.executions[0].earlier == ()
    fake_sglang.say("a bad one").say("two")
    record, _ = recorded("tests.cli.rerun_agents.picky", ["a"], failure="retry")
    (execution,) = record.executions
    (earlier,) = execution.earlier
    assert "".join(record.texts(earlier.ledger.turns[0].output_ids())) == "a bad one<|im_end|>"
    assert "a bad answer" in earlier.error and earlier.ledger.attempt_id != execution.ledger.attempt_id


def test_settings_are_recorded_and_rows_where_tasks_do_not_tell_them(fake_sglang, recorded):
    fake_sglang.answer_with(lambda request: "four")
    record, _ = recorded(chat_agent(), [{"prompt": "a", "label": "b"}])
    assert record.header["arguments"]["rollout_temperature"] == 1.0
    assert record.header["context_length"] == fake_sglang.context_length
    assert record.header["agl"]["record_dir"] and record.executions[0].row is None
    record, _ = recorded(chat_agent(), [{"prompt": "a", "label": "b"}], task={"prompt": "prompt"})
    row = record.executions[0].row
    assert (row["prompt"], row["label"], row["metadata"]) == ("a", "b", {})


def test_tokens_are_named_once_a_file(fake_sglang, recorded):
    fake_sglang.answer_with(lambda request: "four")
    record, _ = recorded(chat_agent(turns=2), ["a"] * 3)
    lines = record.path.read_bytes().splitlines()
    named = [line for line in lines if line.startswith(b'{"tokens"')]
    assert len(named) == 1 and len(lines) == 1 + 1 + 3
    assert set(record.tokens) == set().union(*(execution.ids() for execution in record.executions))


def drops_long(args, samples, **kwargs):
    """A dynamic filter: a group with a prompt of several letters is dropped."""
    return DynamicFilterOutput(keep=len(samples[0].prompt) == 1, reason="long")


def test_what_a_filter_dropped_is_recorded_as_untrained(fake_sglang, run_rollout, tmp_path):
    fake_sglang.answer_with(lambda request: "four")
    run_rollout(
        chat_agent(),
        ["long", "a"],
        agl={"record_dir": str(tmp_path)},
        rollout_batch_size=1,
        dynamic_sampling_filter_path="tests.rollout.test_rollout_record.drops_long",
    )
    (record,) = read_run(tmp_path)
    told = {execution.unused: row(record, execution) for execution in record.executions}
    assert set(told) == {"filtered", ""}
    assert told["filtered"].trained == 0 and told["filtered"].untrained == {"filtered": told["filtered"].sampled}
    assert told[""].trained > 0
    assert record.header["trainer"]["advantage_estimator"] == "grpo"

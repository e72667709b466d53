"""From a recorded run to supervised training on the same tokens: `slime-agl export` and `slime_agl.rollout.sft`."""

from __future__ import annotations

import inspect
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import agentlightning as agl
import openai
import pytest
from click.testing import CliRunner

from slime_agl.cli.main import main
from slime_agl.errors import ConfigError
from slime_agl.host import RolloutDataSource, default_args, load_function
from slime_agl.rollout import generate, sft
from slime_agl.testing.agents import chat_agent
from tests.conftest import flat
from tests.rollout.slimes_trainer import ARGS, VOCABULARY, loaded

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
FLAGS = {
    "input_key": "messages",
    "n_samples_per_prompt": 1,
    "loss_type": "sft_loss",
    "compute_advantages_and_returns": False,
    "dump_details": None,
}


@agl.rollout
async def branches(task: Any, llm: Any) -> float:
    """A first turn with a tool call, then two branches from it. Rewarded by the task's label."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", max_retries=0) as ai:
        start: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task["prompt"]}]
        answer = await ai.chat.completions.create(model="m", messages=start, tools=TOOLS)
        message = answer.choices[0].message
        call = (message.tool_calls or [None])[0]
        for word in ("one", "two"):
            more = [message.model_dump(exclude_none=True)]
            more += [{"role": "tool", "tool_call_id": call.id if call else "x", "content": word}]
            await ai.chat.completions.create(model="m", messages=[*start, *more], tools=TOOLS)
    return float(task["label"])


@pytest.fixture
def recorded(fake_sglang: Any, run_rollout: Any, tmp_path: Path) -> Any:
    """`recorded(rewards)`: a run with one execution of `branches` per reward; its Samples, and its directory."""

    def run(rewards: list[float], **more: Any) -> tuple[list[Any], Path]:
        rows = [{"prompt": f"row {at}", "label": str(reward)} for at, reward in enumerate(rewards)]
        for _ in rows:
            fake_sglang.call_tool("add", {"a": 1}).say("first branch").say("second branch")
        out = tmp_path / "run"
        section = {"record_dir": str(out), "runners": {"max_concurrency": 1}}
        return flat(run_rollout(branches, rows, agl=section, **more).samples), out

    return run


def export(run: Path, out: Path, *words: str) -> Any:
    return CliRunner().invoke(main, ["export", str(run), "--out", str(out), *words])


def args_of(checkpoint: Path, data: Path, rows: int, **more: Any) -> Namespace:
    given = {**FLAGS, "hf_checkpoint": str(checkpoint), "prompt_data": str(data), "rollout_batch_size": rows}
    return default_args(**{**given, **more})


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sft_trains_on_the_very_tokens_of_the_run(recorded: Any, tmp_path: Path, tiny_checkpoint: Path):
    samples, run = recorded([1.0, 0.0, 1.0])
    assert len(samples) == 6
    done = export(run, tmp_path / "data.jsonl", "--where", "reward >= 1")
    assert done.exit_code == 0, done.stderr
    assert "2 Samples left out: not reward >= 1" in done.stderr and "4 rows" in done.stderr
    args = args_of(tiny_checkpoint, tmp_path / "data.jsonl", 4)
    output = load_function("slime_agl.rollout.sft")(args, 0, RolloutDataSource(args))
    good = [sample for sample in samples if sample.reward == 1.0]
    assert [len(group) for group in output.samples] == [1] * 4
    for mine, theirs in zip(flat(output.samples), good, strict=True):
        assert mine.tokens == theirs.tokens and mine.reward == 1.0
        assert [*[0] * (len(mine.tokens) - mine.response_length), *mine.loss_mask] == [
            *[0] * (len(theirs.tokens) - theirs.response_length),
            *theirs.loss_mask,
        ]
        assert mine.loss_mask[0] == 1 and len(mine.loss_mask) == mine.response_length
        assert mine.metadata["execution"] == theirs.metadata["agl"]["rollout_id"]
    trained = sum(sum(sample.loss_mask) for sample in good)
    assert output.metrics["rollout/agl/sft/trained_tokens"] == trained


def test_messages_say_what_was_said_and_which_of_it_trains(recorded: Any, tmp_path: Path):
    _, run = recorded([1.0])
    assert export(run, tmp_path / "data.jsonl").exit_code == 0
    first, second = rows_of(tmp_path / "data.jsonl")
    assert json.loads(first["tools"]) == TOOLS
    roles = [(one["role"], one["content"]) for one in first["messages"]]
    assert roles == [
        *[("system", "Be brief."), ("user", "row 0"), ("assistant", ""), ("tool", "one")],
        ("assistant", "first branch"),
    ]
    (call,) = first["messages"][2]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 1})
    assert [one["step_loss_mask"] for one in first["messages"] if one["role"] == "assistant"] == [1, 1]
    # The turn that both share trains in the first.
    assert [one["step_loss_mask"] for one in second["messages"] if one["role"] == "assistant"] == [0, 1]
    assert second["messages"][3]["content"] == "two"


def test_the_data_is_its_owners_alone(recorded: Any, tmp_path: Path):
    _, run = recorded([1.0])
    export(run, tmp_path / "data.jsonl")
    assert (tmp_path / "data.jsonl").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob(".*.part"))


def test_parquet_holds_the_same_rows(recorded: Any, tmp_path: Path, tiny_checkpoint: Path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    _, run = recorded([1.0, 0.5])
    done = [export(run, tmp_path / f"data.{kind}") for kind in ("jsonl", "parquet")]
    assert [one.exit_code for one in done] == [0, 0], done[1].stderr
    of_kind = []
    for kind in ("jsonl", "parquet"):
        args = args_of(tiny_checkpoint, tmp_path / f"data.{kind}", 4)
        of_kind.append([vars(one) for one in flat(sft(args, 0, RolloutDataSource(args)).samples)])
    for one, other in zip(*of_kind, strict=True):
        for name in ("tokens", "loss_mask", "response_length", "reward", "metadata"):
            assert one[name] == other[name]


def test_what_cannot_be_trained_on_is_left_out_and_counted(fake_sglang: Any, run_rollout: Any, tmp_path: Path):
    secret = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    fake_sglang.answer_with(lambda request: "ok")
    section = {"record_dir": str(tmp_path / "run")}
    run_rollout(chat_agent(), ["fine", f"my key is {secret}"], agl=section)
    run_rollout(chat_agent(), ["fine"], agl=section, evaluation=True)
    done = export(tmp_path / "run", tmp_path / "data.jsonl")
    assert "1 Sample left out: of an evaluation" in done.stderr
    assert "1 Sample left out: credentials were blotted out" in done.stderr
    (row,) = rows_of(tmp_path / "data.jsonl")
    assert row["messages"][0]["content"] == "fine" and secret not in (tmp_path / "data.jsonl").read_text()
    assert export(tmp_path / "run", tmp_path / "data.jsonl", "--evaluations").stderr.count("2 rows") == 1


def test_wrong_fields_and_kinds_are_refused_with_nothing_written(recorded: Any, tmp_path: Path):
    _, run = recorded([1.0])
    wrong = export(run, tmp_path / "data.jsonl", "--where", "rewrd >= 1")
    assert wrong.exit_code == 2 and "no field 'rewrd'. Did you mean 'reward'?" in wrong.stderr
    assert "task.label" in wrong.stderr
    kind = export(run, tmp_path / "data.csv")
    assert kind.exit_code == 2 and "is of kind .csv, it must be one of .jsonl, .parquet" in kind.stderr
    none = export(run, tmp_path / "data.jsonl", "--where", "reward > 1")
    assert none.exit_code == 1 and "no rows; nothing was written" in none.stderr
    assert not list(tmp_path.glob("data*"))


@pytest.mark.parametrize(
    "change, words",
    [
        ({"loss_mask": [0, 1]}, r"tokens and 2 entries in loss_mask"),
        ({"tokens": [0, 10**6], "loss_mask": [0, 1]}, r"token id 1000000, .* has \d+ tokens"),
        ({"tokens": [1, 2], "loss_mask": [0, 0]}, "2 tokens, of which 0 train"),
        ({"tokens": [1, 2], "loss_mask": [1, 1]}, "trains on its first token"),
        ({"tokens": [1, 2], "loss_mask": [0, 7]}, "has 7 in loss_mask"),
        ({"tokens": [1, 2.5], "loss_mask": [0, 1]}, "has 2.5, a float"),
        ({"tokens": "1 2"}, "metadata.tokens is str"),
        ({"checksum": 7}, r"have checksum 7, with the tokenizer of .* they have \d+"),
        ({"tokens": None}, "metadata.tokens is NoneType"),
    ],
)
def test_a_bad_row_is_refused(recorded: Any, tmp_path: Path, tiny_checkpoint: Path, change: dict, words: str):
    _, run = recorded([1.0])
    export(run, tmp_path / "data.jsonl")
    row = rows_of(tmp_path / "data.jsonl")[0]
    row["metadata"] |= change
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    args = args_of(tiny_checkpoint, tmp_path / "data.jsonl", 1)
    with pytest.raises(ConfigError, match=words):
        sft(args, 0, RolloutDataSource(args))


def test_rows_that_are_no_export_or_too_long_are_refused(recorded: Any, tmp_path: Path, tiny_checkpoint: Path):
    _, run = recorded([1.0])
    export(run, tmp_path / "data.jsonl")
    args = args_of(tiny_checkpoint, tmp_path / "data.jsonl", 1, rollout_max_context_len=5)
    with pytest.raises(ConfigError, match=r"has \d+ tokens, --rollout-max-context-len is 5"):
        sft(args, 0, RolloutDataSource(args))
    (tmp_path / "data.jsonl").write_text(json.dumps({"messages": []}) + "\n")
    args = args_of(tiny_checkpoint, tmp_path / "data.jsonl", 1)
    with pytest.raises(ConfigError, match="has no metadata.tokens; pass --input-key messages"):
        sft(args, 0, RolloutDataSource(args))


@pytest.mark.parametrize(
    "flags, words",
    [
        ({"n_samples_per_prompt": 2}, "--n-samples-per-prompt is 2"),
        ({"loss_type": "policy_loss"}, "pass --loss-type sft_loss"),
        ({"compute_advantages_and_returns": True}, "pass --disable-compute-advantages-and-returns"),
        ({"rollout_top_p": 0.9}, "--rollout-top-p is 0.9"),
        ({"use_rollout_routing_replay": True}, "--use-rollout-routing-replay"),
    ],
)
def test_flags_that_would_train_something_else_are_refused(tiny_checkpoint: Path, flags: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        sft(args_of(tiny_checkpoint, Path("unused"), 1, **flags), 0, None)


def test_it_does_not_evaluate(tiny_checkpoint: Path):
    with pytest.raises(ConfigError, match="pass --eval-function-path slime_agl.rollout.generate"):
        sft(args_of(tiny_checkpoint, Path("unused"), 1), 0, None, evaluation=True)


@pytest.mark.needs_slime
def test_slimes_sft_loss_has_a_gradient_where_the_run_trained_and_nowhere_else(
    recorded: Any, tmp_path: Path, tiny_checkpoint: Path
):
    pytest.importorskip("slime.utils.types", reason="slime is not on PYTHONPATH", exc_type=ImportError)
    samples, run = recorded([1.0, 1.0])
    export(run, tmp_path / "data.jsonl")
    more = {"global_batch_size": 4, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 4096}
    args = args_of(tiny_checkpoint, tmp_path / "data.jsonl", 4, **{**ARGS, **more})
    output = sft(args, 0, RolloutDataSource(args))
    with loaded() as trainer:
        torch = trainer._torch
        data = trainer.train_data(args, flat(output.samples), lambda _, given: ([one.reward for one in given],) * 2)
        assert trainer.schedule(args, data, ranks=1) == 1
        assert data["rollout_mask_sums"] == [sum(mask) for mask in data["loss_masks"]]
        assert "rollout_log_probs" not in data and data["tokens"] == [sample.tokens for sample in samples]
        tokens = [torch.tensor(ids) for ids in data["tokens"]]
        logits = torch.randn(1, sum(map(len, tokens)), VOCABULARY, requires_grad=True)
        masks = [torch.tensor(mask) for mask in data["loss_masks"]]
        lengths = [len(ids) for ids in tokens]
        batch = {"unconcat_tokens": tokens, "total_lengths": lengths, "response_lengths": data["response_lengths"]}
        sums = torch.tensor(data["rollout_mask_sums"])
        reducer = trainer._loss.get_sum_of_sample_mean(lengths, data["response_lengths"], masks, sums)
        loss, _ = trainer._loss.sft_loss_function(args, batch, logits, reducer)
        loss.backward()
        found = (logits.grad[0].abs().sum(-1) > 0).tolist()
    expected: list[bool] = []
    for sample in samples:
        whole = [0] * (len(sample.tokens) - sample.response_length) + sample.loss_mask
        expected += [bool(value) for value in whole[1:]] + [False]
    assert found == expected


def test_its_signature_is_that_of_the_rollout_function():
    def parameters(function: Any) -> list[tuple[Any, ...]]:
        return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]

    assert parameters(sft) == parameters(generate)

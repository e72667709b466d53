"""Prompt files, data sources and evaluation prompts."""

from __future__ import annotations

import logging

import pytest

from slime_agl import host
from slime_agl.errors import ConfigError
from slime_agl.host.data_source import RolloutDataSource, RolloutDataSourceWithBuffer
from slime_agl.host.dataset import Dataset
from slime_agl.host.eval_config import EvalDatasetConfig, build_eval_dataset_configs


class Words:
    """A tokenizer with one token a word and a template that shouts."""

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[str]]]:
        assert not add_special_tokens
        return {"input_ids": [text.split() for text in texts]}

    def apply_chat_template(self, messages, tools, tokenize, add_generation_prompt, **kwargs) -> str:
        assert add_generation_prompt and not tokenize
        return f"{messages[-1]['content'].upper()} {len(tools or [])} {kwargs}"


def prompts(dataset) -> list[str]:
    return [sample.prompt for sample in dataset.samples]


def test_rows_become_samples_and_broken_lines_are_skipped_with_a_warning(rows, caplog):
    path = rows({"q": "one", "a": "1", "metadata": {"level": 2}}, "{broken\n", {"q": "two", "a": "2"})
    with caplog.at_level(logging.WARNING):
        dataset = Dataset(path, None, None, None, prompt_key="q", label_key="a")
    assert [(sample.prompt, sample.label, sample.metadata) for sample in dataset.samples] == [
        ("one", "1", {"level": 2}),
        ("two", "2", {}),
    ]
    assert "line 2" in caplog.text


@pytest.mark.parametrize(
    ("cut", "left"), [("@[1:3]", "bc"), ("@[:2]", "ab"), ("@[-2:]", "cd"), ("@[:-3]", "a"), ("@[9:]", "")]
)
def test_a_path_may_end_in_a_slice(rows, cut, left):
    path = rows(*({"text": letter} for letter in "abcd"))
    assert prompts(Dataset(path + cut, None, None, None)) == list(left)


def test_templates_tools_and_length_limits_apply(rows):
    path = rows({"text": "hello"}, {"text": "far too long", "tools": '[{"type": "function"}]'})
    dataset = Dataset(
        path, Words(), None, None, apply_chat_template=True, apply_chat_template_kwargs={"x": 1}, tool_key="tools"
    )
    assert prompts(dataset) == ["HELLO 0 {'x': 1}", "FAR TOO LONG 1 {'x': 1}"]
    assert dataset[1].metadata["tools"] == [{"type": "function"}]
    assert prompts(Dataset(path, Words(), None, 2)) == ["hello"]


def test_messages_stay_messages_and_are_not_measured(rows):
    messages = [{"role": "user", "content": "a b c"}]
    assert prompts(Dataset(rows({"text": messages}), None, None, 2)) == [messages]


@pytest.mark.parametrize(
    ("row", "keywords", "words"),
    [
        (
            {"text": "x", "lable": "1"},
            {"label_key": "label"},
            ["row 1 of", "'label'", "--label-key", "Did you mean 'lable'?"],
        ),
        ({"text": "x", "tools": {"a": 1}}, {"tool_key": "tools"}, ["--tool-key", "is dict"]),
        ({"text": "x"}, {"multimodal_keys": {"image": "picture"}}, ["--multimodal-keys"]),
    ],
)
def test_rows_that_cannot_be_used_are_named(rows, row, keywords, words):
    with pytest.raises(ConfigError) as raised:
        Dataset(rows(row), None, None, None, **keywords)
    assert all(word in str(raised.value) for word in words)


def test_files_that_cannot_be_read_are_named(rows, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.jsonl does not exist"):
        Dataset(str(tmp_path / "missing.jsonl@[0:1]"), None, None, None)
    with pytest.raises(ValueError, match=r"is of kind .csv, it must be one of .jsonl, .parquet"):
        Dataset(rows(name="rows.csv"), None, None, None)


def source(cls, rows, count=5, **overrides):
    return cls(host.default_args(prompt_data=rows(*({"input": str(at)} for at in range(count))), **overrides))


def test_groups_are_numbered_copies_of_one_prompt(rows):
    groups = source(RolloutDataSource, rows, n_samples_per_prompt=2).get_samples(2)
    assert [[(sample.prompt, sample.group_index, sample.index) for sample in group] for group in groups] == [
        [("0", 0, 0), ("0", 0, 1)],
        [("1", 1, 2), ("1", 1, 3)],
    ]
    groups[0][0].metadata["x"] = 1
    assert groups[0][1].metadata == {}


def test_epochs_follow_each_other_even_within_one_call(rows):
    data = source(RolloutDataSource, rows, count=2)
    assert [group[0].prompt for group in data.get_samples(5)] == ["0", "1", "0", "1", "0"]
    assert (data.epoch_id, data.sample_offset, len(data)) == (2, 1, 2)


def test_every_epoch_has_its_own_order_that_depends_on_the_seed_alone(rows):
    first, second = (source(RolloutDataSource, rows, count=20, rollout_shuffle=True) for _ in range(2))
    epochs = [[group[0].prompt for group in first.get_samples(20)] for _ in range(2)]
    assert epochs == [[group[0].prompt for group in second.get_samples(20)] for _ in range(2)]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])


def test_a_run_goes_on_where_its_checkpoint_stood(rows, tmp_path):
    overrides = {"save": str(tmp_path), "load": str(tmp_path), "rollout_shuffle": True}
    first = source(RolloutDataSourceWithBuffer, rows, **overrides)
    first.get_samples(7)
    first.update_metadata({"seen": 7})
    first.save(3)
    again = source(RolloutDataSourceWithBuffer, rows, **overrides)
    again.load(3)
    assert again.get_metadata() == {"seen": 7}
    assert again.get_samples(4) == first.get_samples(4)
    fresh = source(RolloutDataSource, rows, **overrides)
    fresh.load(99)
    assert fresh.sample_index == 0


def test_groups_put_back_come_out_first(rows):
    data = source(RolloutDataSourceWithBuffer, rows)
    held = data.get_samples(3)
    data.add_samples(held[1:])
    assert data.get_buffer_length() == 2
    assert [group[0].prompt for group in data.get_samples(3)] == ["1", "2", "3"]
    data.add_samples([])
    with pytest.raises(AssertionError, match="has 2 entries, n_samples_per_prompt is 1"):
        data.add_samples([held[0] * 2])
    with pytest.raises(RuntimeError, match="read-only"):
        source(RolloutDataSource, rows).add_samples(held)


def test_without_a_global_dataset_samples_are_empty_and_state_is_not_kept(tmp_path):
    data = RolloutDataSource(
        host.default_args(rollout_global_dataset=False, n_samples_per_prompt=2, save=str(tmp_path))
    )
    (group,) = data.get_samples(1)
    assert [(sample.prompt, sample.index) for sample in group] == [("", 0), ("", 1)]
    data.save(0)
    assert list(tmp_path.iterdir()) == [] and len(data) == 0


def test_evaluation_prompts_are_copies_with_the_datasets_own_settings(rows):
    path = rows({"input": "a", "metadata": {"level": 1}}, {"input": "b"})
    raw = host.default_args(eval_prompt_data=["set", path], n_samples_per_eval_prompt=2)
    args = host.RolloutArgs.read(raw)
    (config,) = args.eval_datasets
    config.rm_type, config.custom_rm_path, config.custom_generate_function_path = "math", "a.b", "c.d"
    eval_prompts = host.EvalPrompts(args)
    samples = eval_prompts.samples(config)
    assert [(sample.prompt, sample.index) for sample in samples] == [("a", 0), ("a", 1), ("b", 2), ("b", 3)]
    assert samples[0].metadata == {"level": 1, "rm_type": "math"}
    assert (samples[0].custom_rm_path, samples[0].generate_function_path) == ("a.b", "c.d")
    assert eval_prompts.samples(config)[0] is not samples[0]


def test_evaluation_prompts_are_rendered_by_the_tokenizer_given(rows):
    raw = host.default_args(eval_prompt_data=["set", rows({"input": "a"})], apply_chat_template=True)
    args = host.RolloutArgs.read(raw)
    (sample,) = host.EvalPrompts(args, Words()).samples(args.eval_datasets[0])
    assert sample.prompt == "A 0 {}"


def test_an_evaluation_entry_is_ordered_and_reads_the_reward_key():
    args = host.RolloutArgs.read(host.default_args(eval_reward_key="score"))
    status = host.Sample.Status
    samples = [
        host.Sample(index=1, reward={"score": 0.5}, status=status.TRUNCATED),
        host.Sample(index=0, reward={"score": 1.0}, status=status.COMPLETED),
    ]
    entry = host.eval_entry(args, samples)
    assert entry == {"rewards": [1.0, 0.5], "truncated": [False, True], "samples": samples[::-1]}


def test_dataset_settings_come_from_the_entry_then_the_defaults_then_the_flags():
    args = host.default_args(rollout_top_p=0.8, eval_top_k=5, input_key="q")
    entry = {"name": "a", "path": "a.jsonl", "temperature": 0.1}
    (config,) = build_eval_dataset_configs(args, [entry], {"temperature": 0.2, "top_p": 0.9, "rm_type": "f1"})
    assert (config.temperature, config.top_p, config.top_k, config.input_key, config.rm_type) == (
        0.1,
        0.9,
        5,
        "q",
        "f1",
    )


@pytest.mark.parametrize(
    ("entry", "common", "message"),
    [
        (
            {"name": "a", "path": "a", "temprature": 1},
            {},
            "eval dataset 'a' has no key 'temprature'. Did you mean 'temperature'?",
        ),
        ({"name": "a", "path": "a"}, {"topp": 1}, "eval.defaults has no key 'topp'. Did you mean 'top_p'?"),
        ({"name": "a", "path": "a", "min_eval_samples": 0}, {}, "min_eval_samples of eval dataset a is 0"),
    ],
)
def test_dataset_settings_that_are_wrong_are_named(entry, common, message):
    with pytest.raises(ConfigError) as raised:
        build_eval_dataset_configs(host.default_args(), [entry], common)
    assert message in str(raised.value)


def test_metadata_overrides_must_be_a_mapping():
    with pytest.raises(TypeError, match="metadata_overrides of eval dataset a is list"):
        EvalDatasetConfig(name="a", path="a", metadata_overrides=[])

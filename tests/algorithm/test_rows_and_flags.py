"""Datasets as slime's files, and settings as slime's flags."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from slime_agl.algorithm.flags import KnownFlags, check_keys, check_names, words_of
from slime_agl.algorithm.local import _require_numbers
from slime_agl.algorithm.rows import task, write_rows
from slime_agl.errors import ConfigError
from slime_agl.host.known_flags import from_source

KNOWN = KnownFlags({"n_samples_per_prompt": "value", "colocate": "switch", "offload": "either", "stop": "list"}, True)


@pytest.mark.parametrize(
    "row", ["a text", {"question": "2 + 2", "n": [1, 2.5, None, True]}, ["x", {"y": "z"}], 7, None, {"deep": {"a": []}}]
)
def test_a_row_comes_back_as_the_agents_task(tmp_path: Path, row: object):
    assert write_rows(tmp_path / "rows.jsonl", [row, row], "train_dataset") == 2
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [task(SimpleNamespace(metadata=line["metadata"])) for line in lines] == [row, row]
    assert all(isinstance(line["prompt"], str) and line["prompt"] for line in lines)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"image": object()}, r"train_dataset\[1\]\['image'\] is a object"),
        ({"pair": (1, 2)}, "is a tuple.*make it a list"),
        ({"n": float("nan")}, "is nan"),
        ({1: "x"}, "keys in JSON are text"),
        ({"text": "ab\ud83d"}, r"\['text'\] has half a surrogate pair, .* at character 2"),
        ([b"x"], r"train_dataset\[1\]\[0\] is a bytes"),
    ],
)
def test_what_json_does_not_hold_is_named_with_its_place(tmp_path: Path, row: object, words: str):
    with pytest.raises(ConfigError, match=words):
        write_rows(tmp_path / "rows.jsonl", ["fine", row], "train_dataset")


def test_an_empty_dataset_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="val_dataset has no rows"):
        write_rows(tmp_path / "rows.jsonl", [], "val_dataset")


def test_what_is_no_dataset_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="train_dataset is a generator; a dataset has a length"):
        write_rows(tmp_path / "rows.jsonl", (row for row in "ab"), "train_dataset")  # type: ignore[arg-type]


def test_text_in_the_place_of_a_number_is_named():
    with pytest.raises(ConfigError, match="n_samples_per_prompt is 'many', it must be a number"):
        _require_numbers({"n_samples_per_prompt": "many"})
    _require_numbers({"n_samples_per_prompt": 8, "rollout_batch_size": None, "hf_checkpoint": "x"})


def test_settings_become_words():
    config = {"n_samples_per_prompt": 8, "colocate": True, "offload": False, "stop": ["a", "b"], "agl": {}, "x": None}
    assert words_of(config, KNOWN) == ["--n-samples-per-prompt", "8", "--colocate", "--no-offload", "--stop", "a", "b"]
    assert words_of({"colocate": False}, KNOWN) == []
    assert words_of({"apply_chat_template_kwargs": {"a": True}}, KNOWN) == [
        "--apply-chat-template-kwargs",
        '{"a": true}',
    ]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"colocate": 3}, "takes no value"),
        ({"n_samples_per_prompt": [1, 2]}, "one value"),
        ({"stop": object()}, "object"),
    ],
)
def test_values_that_do_not_fit_are_refused(config: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        words_of(config, KNOWN)


def test_an_unknown_key_is_refused_with_the_nearest_name(caplog):
    with pytest.raises(ConfigError, match="Did you mean 'n_samples_per_prompt'"):
        check_keys({"n_sample_per_prompt": 8}, KNOWN)
    partly = KnownFlags(KNOWN.flags, whole=False)
    with pytest.raises(ConfigError, match="Did you mean 'n_samples_per_prompt'"):
        check_keys({"n_sample_per_prompt": 8}, partly)
    check_keys({"swiglu": True}, partly)
    assert "swiglu: not checked" in caplog.text
    with pytest.raises(ConfigError, match="swiglu is no flag of slime"):
        check_keys({"swiglu": True}, KNOWN)


@pytest.mark.parametrize("name", ["prompt_data", "custom_config_path", "rollout-batch-size"])
def test_what_the_trainer_decides_is_no_key(name: str):
    with pytest.raises(ConfigError, match=name):
        check_names({name: "x"})


def test_flags_are_read_from_a_source_that_cannot_be_imported(tmp_path: Path):
    path = tmp_path / "arguments.py"
    path.write_text(
        "import no_such_package\n"
        'parser.add_argument("--plain-value", type=int,\n    default=1,\n)\n'
        'parser.add_argument(\n    "--a-switch",\n    action="store_true",\n)\n'
        'reset_arg(parser, "--several", nargs="+")\n'
        'parser.add_argument("--clears-it", action="store_false", dest="it")\n'
        'parser.add_argument(\n    "--either-way",\n    action=argparse.BooleanOptionalAction,\n)\n'
    )
    assert from_source(path) == {
        "plain_value": "value",
        "a_switch": "switch",
        "several": "list",
        "clears_it": "clears",
        "either_way": "either",
    }


@pytest.mark.needs_slime
def test_slimes_own_flags_are_known():
    pytest.importorskip("slime.utils.types", reason="no slime checkout is on PYTHONPATH")
    spec = importlib.util.find_spec("slime")
    assert spec is not None and spec.submodule_search_locations
    found = from_source(Path(spec.submodule_search_locations[0]) / "utils" / "arguments.py")
    assert {"n_samples_per_prompt": "value", "colocate": "switch"}.items() <= found.items() and len(found) > 150

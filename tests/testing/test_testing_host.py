"""slime's side in tests: arguments and data."""

from __future__ import annotations

import pytest

from slime_agl.errors import ConfigError, HostError
from slime_agl.testing import ListDataSource, importable, make_args


def test_args_point_at_the_engine_and_take_overrides(fake_sglang, tiny_checkpoint):
    args = make_args(fake_sglang, tiny_checkpoint, n_samples_per_prompt=4)
    assert f"http://{args.sglang_router_ip}:{args.sglang_router_port}" == fake_sglang.url
    assert (args.hf_checkpoint, args.n_samples_per_prompt) == (str(tiny_checkpoint), 4)


def test_an_address_without_a_port_is_refused():
    with pytest.raises(ConfigError, match="http://127.0.0.1:30000"):
        make_args("http://localhost", "x")


def test_groups_are_numbered_as_slime_numbers_them_and_the_list_goes_round():
    source = ListDataSource(["a", {"prompt": "b", "label": "B", "metadata": {"k": 1}}], n_samples_per_prompt=2)
    groups = source.get_samples(3)
    assert [[sample.prompt for sample in group] for group in groups] == [["a", "a"], ["b", "b"], ["a", "a"]]
    assert [[sample.index for sample in group] for group in groups] == [[0, 1], [2, 3], [4, 5]]
    assert [group[0].group_index for group in groups] == [0, 1, 2]
    assert (groups[1][0].label, groups[1][0].metadata) == ("B", {"k": 1})
    assert (len(source), source.taken) == (2, groups)


def test_samples_of_a_group_share_nothing():
    first, second = ListDataSource([{"prompt": "a", "metadata": {"k": []}}], 2).get_samples(1)[0]
    first.metadata["k"].append(1)
    assert second.metadata == {"k": []}


def test_groups_put_back_come_first_and_are_remembered():
    source = ListDataSource(["a", "b"])
    group = source.get_samples(1)[0]
    source.add_samples([group])
    assert source.get_samples(1)[0] is group
    assert source.returned == [group]


def test_half_a_group_is_not_taken_back():
    source = ListDataSource(["a"], n_samples_per_prompt=2)
    with pytest.raises(HostError, match="1 samples .* have 2"):
        source.add_samples([source.get_samples(1)[0][:1]])


@pytest.mark.parametrize(
    ("rows", "words"),
    [([], "at least one row"), ([{"promt": "a"}], "Did you mean 'prompt'"), ([{"label": "a"}], "row 0 has no prompt")],
)
def test_bad_rows_are_refused(rows, words):
    with pytest.raises(ConfigError, match=words):
        ListDataSource(rows)


def test_any_object_gets_an_import_path_for_a_while():
    import importlib

    thing = object()
    with importable(thing) as path:
        module, name = path.split(":")
        assert getattr(importlib.import_module(module), name) is thing
    assert not hasattr(importlib.import_module(module), name)
    with importable("already.a:path") as path:
        assert path == "already.a:path"

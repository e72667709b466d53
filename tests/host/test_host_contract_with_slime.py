"""The stand-ins compared with slime itself. Skipped unless slime's checkout is on PYTHONPATH."""

from __future__ import annotations

import ast
import base64
import dataclasses
import importlib
import inspect
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_agl import host
from slime_agl.errors import InvariantError
from slime_agl.host import data_source, dataset, defaults, eval_config, filters, outputs, reward_hub, sample_hooks
from slime_agl.host.sample import Sample as StandIn
from slime_agl.local.train.batch import flatten, normalised_rewards

types = pytest.importorskip("slime.utils.types", reason="slime is not on PYTHONPATH", exc_type=ImportError)
Real = types.Sample
pytestmark = pytest.mark.needs_slime
ARGS = SimpleNamespace(num_layers=2, moe_router_topk=1, sglang_speculative_algorithm="EAGLE", reward_key=None)


def real_module(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} needs packages that are not installed", exc_type=ImportError)


@pytest.fixture
def data_modules(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """slime.utils.data and slime.rollout.data_source, with empty stand-ins for ray and pillow, which they only name."""
    assert host.Dataset is not None  # resolved before the stand-ins for ray and pillow are there
    for name in ("ray", "PIL"):
        module = ModuleType(name)
        module.Image = None
        monkeypatch.setitem(sys.modules, name, module)
    names = ("slime.utils.data", "slime.rollout.data_source")
    for name in (*names, "slime.utils.processing_utils"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    return tuple(importlib.import_module(name) for name in names)


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(item.name, item.kind, item.default) for item in inspect.signature(function).parameters.values()]


def field_defaults(cls: Any) -> dict[str, Any]:
    named = {}
    for item in dataclasses.fields(cls):
        value = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        named[item.name] = (
            dataclasses.asdict(value) if dataclasses.is_dataclass(value) else getattr(value, "value", value)
        )
    return named


def test_the_real_sample_is_in_force():
    assert host.slime_available()
    assert host.Sample is Real
    assert "slime" in host.where()


def test_samples_have_the_same_fields_in_the_same_order_with_the_same_defaults():
    assert list(field_defaults(StandIn)) == list(field_defaults(Real))
    assert field_defaults(StandIn) == field_defaults(Real)
    assert [status.value for status in StandIn.Status] == [status.value for status in Real.Status]
    assert [status.name for status in StandIn.Status] == [status.name for status in Real.Status]
    assert field_defaults(StandIn.SpecInfo) == field_defaults(Real.SpecInfo)
    assert field_defaults(StandIn.PrefixCacheInfo) == field_defaults(Real.PrefixCacheInfo)


def test_samples_have_the_same_public_methods_with_the_same_parameters():
    public = {name for name in dir(Real) if not name.startswith("_")}
    assert public - set(dir(StandIn)) == set()
    for name in ("append_response_tokens", "get_reward_value", "to_dict", "from_dict"):
        assert parameters(getattr(StandIn, name)) == parameters(getattr(Real, name))


def packed(numbers: list[int], raw: bool) -> Any:
    return numbers if raw else base64.b64encode(np.asarray(numbers, dtype="<i4").tobytes()).decode()


@st.composite
def appends(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of append_response_tokens, mostly right and sometimes wrong."""
    count = draw(st.integers(0, 3))
    tokens = draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
    trainable = draw(st.booleans())
    keywords: dict[str, Any] = {"tokens": tokens, "trainable": trainable, "text": draw(st.sampled_from([None, "x"]))}
    if draw(st.integers(0, 9)) < 9 and trainable:
        keywords["log_probs"] = [-0.5] * draw(st.sampled_from([count] * 9 + [count + 1]))
    meta: dict[str, Any] = {}
    if draw(st.booleans()):
        meta["finish_reason"] = {"type": draw(st.sampled_from(["stop", "length", "abort", "other"]))}
        meta |= {
            "cached_tokens": 1,
            "prompt_tokens": 2,
            "weight_version": "3",
            "spec_verify_ct": 1,
            "completion_tokens": count,
        }
    if draw(st.booleans()) and trainable:
        offsets = [0, *np.cumsum(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))).tolist()]
        offsets[draw(st.integers(0, count))] += draw(st.sampled_from([0] * 9 + [1]))
        ids = list(range(100, 100 + draw(st.sampled_from([offsets[-1]] * 9 + [offsets[-1] + 1]))))
        if ids:
            raw, prefix = draw(st.booleans()), draw(st.sampled_from(["top_p_token_", "top_p_kept_token_"]))
            meta |= {f"{prefix}ids": packed(ids, raw), f"{prefix}offsets": packed(offsets, raw)}
    if draw(st.integers(0, 2)) == 0:
        meta["experts"] = (draw(st.integers(-1, 3)), draw(st.sampled_from([0, 0, 0, 1])))
    if draw(st.booleans()) or meta:
        keywords["meta_info"] = meta
    keywords["update_terminal_info"] = draw(st.sampled_from([True, True, False]))
    return keywords


def applied(sample: Any, keywords: dict[str, Any], total: int) -> str | None:
    keywords = dict(keywords)
    if "experts" in (keywords.get("meta_info") or {}):
        start, extra = keywords["meta_info"]["experts"]
        size = max(0, total - 1 - start) * 2 + extra
        added = {"routed_experts": list(range(size)), "routed_experts_start_len": start}
        keywords["meta_info"] = {key: value for key, value in keywords["meta_info"].items() if key != "experts"} | added
    try:
        sample.append_response_tokens(ARGS, **keywords)
    except ValueError:
        return "ValueError"
    return None


def comparable(sample: Any) -> dict[str, Any]:
    return {key: np.asarray(v).tolist() if hasattr(v, "tolist") else v for key, v in sample.to_dict().items()}


@settings(max_examples=300, deadline=None)
@given(st.lists(appends(), min_size=1, max_size=6), st.integers(0, 3))
def test_both_samples_agree_after_any_appends_accepted_or_refused(operations, prompt_length):
    ours, real = StandIn(tokens=[1] * prompt_length), Real(tokens=[1] * prompt_length)
    for keywords in operations:
        total = len(real.tokens) + len(keywords["tokens"])
        refused = applied(real, keywords, total)
        assert applied(ours, keywords, total) == refused
        assert comparable(ours) == comparable(real)
        if refused:
            break
    assert comparable(StandIn.from_dict(real.to_dict())) == comparable(real)
    assert comparable(Real.from_dict(ours.to_dict())) == comparable(ours)
    assert ours.effective_response_length == real.effective_response_length


@pytest.mark.parametrize(
    ("ours", "module", "names"),
    [
        (outputs, "slime.rollout.base_types", ["RolloutFnTrainOutput", "RolloutFnEvalOutput", "call_rollout_fn"]),
        (
            filters,
            "slime.rollout.filter_hub.base_types",
            ["DynamicFilterOutput", "call_dynamic_filter", "should_drop_dynamic_filter_output"],
        ),
        (
            filters,
            "slime.rollout.filter_hub.dynamic_sampling_filters",
            ["check_reward_nonzero_std", "check_reward_nonzero_std_with_fallback"],
        ),
        (sample_hooks, "slime.rollout.sample_hooks", ["apply_rollout_sample_hooks"]),
        (eval_config, "slime.utils.eval_config", ["EvalDatasetConfig", "build_eval_dataset_configs"]),
        (reward_hub, "slime.rollout.rm_hub", ["async_rm", "batched_async_rm"]),
    ],
)
def test_stand_ins_take_the_parameters_that_slime_takes(ours, module, names):
    real = real_module(module)
    for name in names:
        assert parameters(getattr(ours, name)) == parameters(getattr(real, name)), name


def test_datasets_hold_the_same_samples_in_the_same_order(data_modules, rows):
    real, _ = data_modules
    assert parameters(dataset.Dataset) == parameters(real.Dataset)
    path = rows(
        {"q": "one", "a": "1", "tools": "[]"},
        "this is no JSON\n\n",
        {
            "q": [{"role": "user", "content": "two"}],
            "a": "2",
            "metadata": {"hard": True},
            "tools": [{"type": "function"}],
        },
        *({"q": str(number), "a": "x"} for number in range(6)),
    )
    for cut in ("", "@[1:4]", "@[-2:]", "@[:-1]"):
        sets = [
            cls(path + cut, None, None, None, prompt_key="q", label_key="a", tool_key="tools")
            for cls in (dataset.Dataset, real.Dataset)
        ]
        for epoch in (0, 0, 3):
            for item in sets:
                item.shuffle(epoch)
            ours, theirs = ([comparable(sample) for sample in item.samples] for item in sets)
            assert ours == theirs and len(ours) == len(sets[0])


def test_data_sources_give_the_same_groups(data_modules, rows, monkeypatch):
    _, real = data_modules
    for name in ("load_tokenizer", "load_processor"):
        monkeypatch.setattr(real, name, lambda *args, **kwargs: None)
    path = rows(*({"input": str(number)} for number in range(5)))
    args = host.default_args(prompt_data=path, n_samples_per_prompt=2, rollout_shuffle=True)
    theirs, ours = real.RolloutDataSourceWithBuffer(args), data_source.RolloutDataSourceWithBuffer(args)
    for count in (2, 4, 5, 1, 3):
        given = [source.get_samples(count) for source in (theirs, ours)]
        flat = [[comparable(sample) for group in groups for sample in group] for groups in given]
        assert flat[0] == flat[1]
        for source, groups in zip((theirs, ours), given, strict=True):
            source.add_samples(groups[:2])
    assert theirs.get_buffer_length() == ours.get_buffer_length()
    for name in data_source._STATE:
        assert getattr(theirs, name) == getattr(ours, name)


@pytest.mark.parametrize(
    ("response", "label"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{4.0}", 4),
        (r"\boxed{5}, no, \boxed{6}", r"\boxed{6}"),
        (r"\boxed{1,000}", "1000"),
        (r"\boxed{\frac12}", "1/2"),
        (r"\boxed{\dfrac{1}{2}}", "0.5"),
        (r"\boxed{2/4}", "1/2"),
        (r"\boxed{8/2}", "4"),
        (r"\boxed{-\frac{1}{2}}", "-0.5"),
        (r"\boxed{\$5}", "5"),
        (r"\boxed{50\%}", "50"),
        (r"\boxed{90^\circ}", "90"),
        (r"\boxed{x=4}", "4"),
        (r"\boxed{\text{Yes}}", "yes"),
        (r"\boxed{(1,2)}", "(1, 2)"),
        (r"\boxed{007}", "7"),
        (r"\boxed{1/0}", "2/0"),
        (r"\boxed{4", "4"),
        ("4", "4"),
        (r"\fbox{4}", "4"),
        (r"\boxed{}", ""),
        (r"\boxed{4}", None),
    ],
)
async def test_answers_are_graded_as_slime_grades_them(response, label):
    real = real_module("slime.rollout.rm_hub")
    args = host.default_args(rm_type="math")
    sample = Real(response=response, label=label)
    assert await reward_hub.async_rm(args, sample) == await real.async_rm(args, sample)


@pytest.mark.parametrize("rm_type", ["f1", "boxed_f1", "boxed_nothing", "", None])
async def test_the_other_rules_come_out_the_same(rm_type):
    real = real_module("slime.rollout.rm_hub")
    args = host.default_args()
    for response, label in [
        ("the cat sat", "Cat sat down."),
        ("yes", "no"),
        ("yes", "Yes"),
        (r"\boxed{a b b}", "b b c"),
    ]:
        sample = Real(response=response, label=label, metadata={"rm_type": rm_type})
        results = []
        for module in (real, reward_hub):
            try:
                results.append(await module.async_rm(args, sample))
            except NotImplementedError:
                results.append(NotImplementedError)
        assert results[0] == pytest.approx(results[1])


def test_eval_dataset_configs_come_out_the_same():
    real = real_module("slime.utils.eval_config")
    args = host.default_args(
        rollout_temperature=0.7, eval_top_k=5, n_samples_per_prompt=4, n_samples_per_eval_prompt=None
    )
    entries = [
        {"name": "a", "path": "a.jsonl", "top_p": 0.9},
        {"name": "b", "path": "b.jsonl", "metadata_overrides": {"x": 1}},
    ]
    common = {"temperature": 0.1, "rm_type": "math"}
    theirs = real.build_eval_dataset_configs(args, entries, common)
    ours = eval_config.build_eval_dataset_configs(args, entries, common)
    assert [dataclasses.asdict(item) for item in ours] == [dataclasses.asdict(item) for item in theirs]
    assert [item.cache_key for item in ours] == [item.cache_key for item in theirs]
    assert ours[1].inject_metadata({"y": 2}) == theirs[1].inject_metadata({"y": 2})
    assert field_defaults(eval_config.EvalDatasetConfig) == field_defaults(real.EvalDatasetConfig)


def test_dynamic_filters_judge_the_same():
    real = real_module("slime.rollout.filter_hub.base_types")
    nonzero = real_module("slime.rollout.filter_hub.dynamic_sampling_filters")
    for rewards in ([0.0, 1.0], [0.5, 0.5], [0.25, 0.250001]):
        group = [Real(reward=reward) for reward in rewards]
        theirs, ours = (module.check_reward_nonzero_std_with_fallback(ARGS, group) for module in (nonzero, filters))
        assert (bool(theirs.keep), theirs.reason) == (ours.keep, ours.reason)
        for remaining in (1, 2, 3):
            sizes = {"remaining_batch_size": remaining, "target_data_size": 2}
            drop = filters.should_drop_dynamic_filter_output(ours, **sizes)
            assert drop == real.should_drop_dynamic_filter_output(theirs, **sizes)


def slime_flags() -> dict[str, Any]:
    """Argument name -> literal default, read from the source of slime's parser without importing it."""
    source = Path(types.__file__).with_name("arguments.py").read_text(encoding="utf-8")
    found = {}
    for call in ast.walk(ast.parse(source)):
        if not (
            isinstance(call, ast.Call)
            and getattr(call.func, "attr", getattr(call.func, "id", "")) in ("add_argument", "reset_arg")
        ):
            continue
        flags = [
            item.value for item in call.args if isinstance(item, ast.Constant) and str(item.value).startswith("--")
        ]
        keywords = {item.arg: item.value for item in call.keywords}
        literal = {name: node.value for name, node in keywords.items() if isinstance(node, ast.Constant)}
        if flags:
            name = literal.get("dest") or flags[0].removeprefix("--").replace("-", "_")
            implied = {"store_true": False, "store_false": True}.get(literal.get("action"))
            found[name] = (literal.get("default", implied), "default" not in keywords or "default" in literal)
    return {name: default for name, (default, known) in found.items() if known}


def test_default_arguments_are_those_of_slimes_parser():
    flags = slime_flags()
    shared = set(flags) & set(defaults._DEFAULTS)
    ours_on_purpose = {"rollout_function_path", "custom_reward_post_process_path", "rollout_batch_size"}
    assert len(shared) > 60
    assert {name: defaults._DEFAULTS[name] for name in shared - ours_on_purpose} == {
        name: flags[name] for name in shared - ours_on_purpose
    }


def test_slimes_default_rollout_function_still_has_the_signature_that_ours_has():
    source = (Path(types.__file__).parents[1] / "rollout" / "sglang_rollout.py").read_text(encoding="utf-8")
    function = next(
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == "generate_rollout"
    )
    assert [item.arg for item in function.args.args] == ["args", "rollout_id", "data_source", "evaluation"]
    assert [ast.literal_eval(item) for item in function.args.defaults] == [False]
    assert not (function.args.kwonlyargs or function.args.posonlyargs or function.args.vararg or function.args.kwarg)


def random_nest(rng: random.Random) -> list[Any]:
    depth = rng.choice([0, 1])

    def entry(number: int) -> Any:
        if not depth:
            return Real(rollout_id=rng.choice([None, number]))
        ids = rng.choice([[number], [None], [number, number], [number, None], [number, number + 1]])
        return [Real(rollout_id=item) for item in ids]

    return [[entry(2 * group + at) for at in range(2)] for group in range(2)]


def test_the_rollout_id_rule_is_that_of_slimes_manager():
    real = real_module("slime.observability.rollout_data_utils")
    args = host.default_args(rollout_batch_size=2, n_samples_per_prompt=2)
    rng = random.Random(0)
    seen = set()
    for _ in range(200):
        nest = random_nest(rng)
        try:
            real.validate_rollout_id_annotated(nest)
            allowed = True
        except AssertionError:
            allowed = False
        seen.add(allowed)
        try:
            flatten(args, nest)
            assert allowed
        except InvariantError:
            assert not allowed
    assert seen == {True, False}


def test_reward_normalisation_is_that_of_slimes_manager():
    torch = real_module("torch")
    args = host.default_args(rollout_batch_size=2, n_samples_per_prompt=3)
    rewards = [0.0, 1.0, 0.5, 1.0, 1.0, 0.0]
    groups = torch.tensor(rewards).reshape(2, 3)
    centred = groups - groups.mean(dim=-1, keepdim=True)
    expected = (centred / (centred.std(dim=-1, keepdim=True) + 1e-6)).flatten().tolist()
    raw, ours = normalised_rewards(args, [Real(reward=reward) for reward in rewards])
    assert raw == rewards
    assert ours == pytest.approx(expected, abs=1e-6)

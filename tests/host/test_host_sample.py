"""The stand-in Sample keeps everything aligned with the response."""

from __future__ import annotations

import base64
import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from slime_agl.host.sample import Sample

ARGS = SimpleNamespace(reward_key=None, num_layers=2, moe_router_topk=1)


def b64(*numbers: int) -> str:
    return base64.b64encode(np.asarray(numbers, dtype="<i4").tobytes()).decode()


def top_p(ids: list[int], offsets: list[int]) -> dict:
    return {"top_p_token_ids": b64(*ids), "top_p_token_offsets": b64(*offsets)}


def prompted(*tokens: int) -> Sample:
    return Sample(tokens=list(tokens))


def test_sampled_tokens_train_and_glue_does_not():
    sample = prompted(1, 2)
    sample.append_response_tokens(ARGS, tokens=[5, 6], log_probs=[-0.1, -0.2], text="ab")
    sample.append_response_tokens(ARGS, tokens=[7], trainable=False)
    sample.append_response_tokens(ARGS, tokens=[8], log_probs=[-0.3], text="c")
    assert sample.tokens == [1, 2, 5, 6, 7, 8]
    assert sample.loss_mask == [1, 1, 0, 1]
    assert sample.rollout_log_probs == [-0.1, -0.2, 0.0, -0.3]
    assert (sample.response, sample.response_length, sample.effective_response_length) == ("abc", 4, 3)


def test_tokens_and_logprobs_are_taken_from_arrays():
    sample = prompted()
    sample.append_response_tokens(tokens=np.array([[5], [6]]), log_probs=np.array([-1.0, -2.0]))
    assert sample.tokens == [5, 6] and all(type(token) is int for token in sample.tokens)
    assert sample.rollout_log_probs == [-1.0, -2.0]


def test_glue_before_anything_sampled_gets_zero_logprobs():
    sample = Sample(tokens=[1, 2, 3], response_length=2)
    sample.append_response_tokens(tokens=[4], trainable=False)
    assert sample.loss_mask == [1, 1, 0]
    assert sample.rollout_log_probs == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"tokens": [1, 2], "log_probs": [-1.0]}, "2 response tokens came with 1 logprobs"),
        ({"tokens": [1]}, "without logprobs"),
        ({"tokens": [1], "log_probs": [-1.0], "trainable": False}, "do not train came with logprobs"),
    ],
)
def test_misaligned_logprobs_are_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        prompted().append_response_tokens(ARGS, **keywords)


def test_sampled_tokens_after_a_response_without_logprobs_are_refused():
    sample = Sample(tokens=[1, 2], response_length=1)
    with pytest.raises(ValueError, match="1 response tokens already there have no logprobs"):
        sample.append_response_tokens(tokens=[3], log_probs=[-1.0])


@pytest.mark.parametrize(
    ("finish", "status"),
    [("stop", "completed"), ("length", "truncated"), ("abort", "aborted"), ("unheard of", "pending")],
)
def test_the_finish_reason_sets_status_counters_and_weight_version(finish, status):
    sample = prompted()
    meta = {"finish_reason": {"type": finish}, "weight_version": "7", "cached_tokens": 3, "prompt_tokens": 4}
    sample.append_response_tokens(ARGS, tokens=[5], log_probs=[-1.0], meta_info=meta)
    assert sample.status.value == status
    assert sample.weight_versions == ["7"]
    assert sample.prefix_cache_info.prefix_cache_hit_rate == 0.75


def test_a_partial_answer_leaves_the_status_alone():
    sample = prompted()
    meta = {"finish_reason": {"type": "abort"}, "weight_version": "7"}
    sample.append_response_tokens(ARGS, tokens=[5], log_probs=[-1.0], meta_info=meta, update_terminal_info=False)
    assert sample.status is Sample.Status.PENDING and sample.weight_versions == []


def test_speculative_statistics_are_counted_when_slime_speculates():
    sample = prompted()
    meta = {
        "finish_reason": {"type": "stop"},
        "spec_accept_token_num": 3,
        "spec_draft_token_num": 6,
        "spec_verify_ct": 2,
        "completion_tokens": 5,
    }
    sample.append_response_tokens(SimpleNamespace(sglang_speculative_algorithm="EAGLE"), meta_info=meta)
    sample.append_response_tokens(SimpleNamespace(), meta_info=meta)
    assert sample.spec_info.spec_accept_rate == 0.5
    assert sample.spec_info.spec_accept_length == 2.5


def test_top_p_sets_cover_sampled_tokens_and_are_empty_on_glue():
    sample = prompted(1)
    sample.append_response_tokens(ARGS, tokens=[5, 6], log_probs=[-1.0, -1.0], meta_info=top_p([50, 51, 60], [0, 2, 3]))
    sample.append_response_tokens(ARGS, tokens=[7], trainable=False)
    sample.append_response_tokens(ARGS, tokens=[8], log_probs=[-1.0], meta_info=top_p([80], [0, 1]))
    assert sample.rollout_top_p_token_ids.tolist() == [50, 51, 60, 80]
    assert sample.rollout_top_p_token_offsets.tolist() == [0, 2, 3, 3, 4]
    assert sample.rollout_top_p_token_ids.dtype == np.int32


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"top_p_token_ids": [1]}, "ids without offsets"),
        ({"top_p_token_offsets": [0]}, "offsets without ids"),
        (top_p([1], [1, 1]), "must begin with 0"),
        (top_p([1, 2], [0, 1]), "end at 1, there are 2 ids"),
        (top_p([1], [0, 0, 1]), "have 3 entries, 1 sampled tokens need 2"),
    ],
)
def test_top_p_sets_that_do_not_fit_are_refused(meta, message):
    with pytest.raises(ValueError, match=message):
        prompted().append_response_tokens(ARGS, tokens=[5], log_probs=[-1.0], meta_info=meta)


def test_a_sampled_token_without_its_top_p_set_is_refused():
    sample = prompted()
    sample.append_response_tokens(ARGS, tokens=[5], log_probs=[-1.0], meta_info=top_p([50], [0, 1]))
    with pytest.raises(ValueError, match="have 2 entries, a response of 2 tokens needs 3"):
        sample.append_response_tokens(ARGS, tokens=[6], log_probs=[-1.0])


def test_routed_experts_have_a_row_for_each_token_but_the_last():
    sample = prompted(1, 2)
    first = {"routed_experts": b64(*range(4))}
    sample.append_response_tokens(ARGS, tokens=[5], log_probs=[-1.0], meta_info=first)
    rest = {"routed_experts": b64(90, 91, 92, 93), "routed_experts_start_len": 1}
    sample.append_response_tokens(ARGS, tokens=[6], log_probs=[-1.0], meta_info=rest)
    assert sample.rollout_routed_experts.shape == (3, 2, 1)
    assert sample.rollout_routed_experts.reshape(-1).tolist() == [0, 1, 90, 91, 92, 93]


@pytest.mark.parametrize(
    ("args", "meta", "message"),
    [
        (None, {"routed_experts": b64(0, 1)}, "need slime's args"),
        (ARGS, {"routed_experts": b64(0)}, r"1 routed experts, 2 tokens from row 0 on need shape \(1, 2, 1\)"),
        (ARGS, {"routed_experts": [], "routed_experts_start_len": 1}, "holds none"),
        (ARGS, {"routed_experts": [], "routed_experts_start_len": -1}, "must not be negative"),
    ],
)
def test_routed_experts_that_do_not_fit_are_refused(args, meta, message):
    with pytest.raises(ValueError, match=message):
        prompted(1).append_response_tokens(args, tokens=[5], log_probs=[-1.0], meta_info=meta)


def test_a_sample_survives_the_way_through_a_dictionary():
    sample = prompted(1)
    meta = {"finish_reason": {"type": "length"}, "prompt_tokens": 1}
    sample.append_response_tokens(ARGS, tokens=[5], log_probs=[-1.0], meta_info=meta)
    sample.note = "an attribute of the user's own"
    again = Sample.from_dict(sample.to_dict())
    assert again == sample
    assert again.note == sample.note
    assert Sample.from_dict({"status": "pending"}) == Sample()


def test_a_sample_can_be_copied_and_pickled():
    sample = prompted(1)
    assert copy.deepcopy(sample) == pickle.loads(pickle.dumps(sample)) == sample


def test_the_reward_key_picks_one_of_several_rewards():
    assert Sample(reward={"math": 0.5}).get_reward_value(SimpleNamespace(reward_key="math")) == 0.5
    assert Sample(reward=0.25).get_reward_value(SimpleNamespace(reward_key=None)) == 0.25

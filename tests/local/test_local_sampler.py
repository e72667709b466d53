"""Drawing a token."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from slime_agl.errors import EngineRejected
from slime_agl.local.engine.sampler import choose, uniform
from slime_agl.local.engine.sampling import SamplingParams, parse_sampling_params

PROBS = [0.4, 0.3, 0.2, 0.06, 0.04]
LOGITS = torch.tensor(PROBS).log()


def drawn(**params) -> Counter:
    """How often each token is drawn over 2,000 evenly spread numbers."""
    given = SamplingParams(**params)
    return Counter(choose(LOGITS, given, number / 2000, seen=())[0] for number in range(2000))


def shares(counts: Counter) -> dict[int, float]:
    return {token: round(count / 2000, 2) for token, count in sorted(counts.items())}


def test_tokens_are_drawn_as_often_as_they_are_likely():
    assert shares(drawn()) == dict(enumerate(PROBS))


def test_temperature_flattens():
    flat = [p**0.5 for p in PROBS]
    assert shares(drawn(temperature=2.0)) == pytest.approx({i: p / sum(flat) for i, p in enumerate(flat)}, abs=0.011)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.69}, {0, 1}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"top_p": 0.01}, {0}),
        ({"min_p": 0.49}, {0, 1, 2}),
        ({"top_k": 4, "top_p": 0.95, "min_p": 0.6}, {0, 1}),
    ],
)
def test_filters_keep_the_most_likely_tokens_in_proportion(params, kept):
    total = sum(PROBS[token] for token in kept)
    assert shares(drawn(**params)) == pytest.approx({token: PROBS[token] / total for token in kept}, abs=0.011)


def test_the_logprob_is_that_before_the_filters():
    token, logprob = choose(LOGITS, SamplingParams(top_k=1), 0.5, seen=())
    assert (token, logprob) == (0, pytest.approx(math.log(0.4)))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_logprob_is_that_at_the_temperature_of_the_draw(temperature):
    flat = [p ** (1 / temperature) for p in PROBS]
    for number in (0.0, 0.5, 0.97):
        token, logprob = choose(LOGITS, SamplingParams(temperature=temperature), number, seen=())
        assert logprob == pytest.approx(math.log(flat[token] / sum(flat)))


def test_forbidden_tokens_are_never_drawn_and_the_rest_is_renormalised():
    token, logprob = choose(LOGITS, SamplingParams(temperature=0), 0.0, seen=(), forbidden=[0])
    assert (token, logprob) == (1, pytest.approx(math.log(0.3 / 0.6)))


def test_a_repetition_penalty_makes_seen_tokens_less_likely():
    token, _ = choose(
        torch.tensor([2.0, 1.9, -1.0]), SamplingParams(temperature=0, repetition_penalty=1.5), 0, seen=[0]
    )
    assert token == 1


def test_the_largest_number_lands_on_a_token_that_was_kept():
    assert choose(LOGITS, SamplingParams(top_k=2), 1 - 2**-48, seen=())[0] == 1


def test_the_number_of_a_seed_and_a_position_is_even_and_its_own():
    numbers = [uniform(seed, position) for seed in range(20) for position in range(100)]
    assert len(set(numbers)) == 2000 and all(0 <= number < 1 for number in numbers)
    assert sum(numbers) / 2000 == pytest.approx(0.5, abs=0.02)
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)


def test_parameters_are_read_under_sglangs_names_and_null_is_the_default():
    params = parse_sampling_params(
        {
            "temperature": 0.7,
            "stop": "END",
            "stop_token_ids": [2],
            "top_k": None,
            "n": 1,
            "frequency_penalty": 0.0,
            "spaces_between_special_tokens": False,
        }
    )
    assert params == SamplingParams(temperature=0.7, stop=("END",), stop_token_ids=(2,))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1}, "temperature is -1.0, it must be at least 0"),
        ({"temperature": True}, "temperature is True, it must be a finite number"),
        ({"top_p": 0}, r"top_p is 0.0, it must be in \(0, 1\]"),
        ({"top_k": 0}, "top_k is 0, it must be -1 or at least 1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5, it must be an integer"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, r"between 0 and max_new_tokens \(8\)"),
        ({"stop": [""]}, "non-empty strings"),
        ({"n": 2}, "n is 2; the local engine has no n"),
        ({"custom_params": {"return_top_p_token_ids": True}}, "custom_params"),
        ({"temprature": 1}, "unknown field 'temprature'. Did you mean 'temperature'?"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(given, message):
    with pytest.raises(EngineRejected, match=message) as refusal:
        parse_sampling_params(given)
    assert refusal.value.status == 400

"""GAE over sampled tokens: against a plain recursion, and what it must not depend on."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from slime_agl.credit.gae import masked_gae
from slime_agl.errors import InvariantError


def rows(*values: list[float]) -> list[Any]:
    return [np.array(value, dtype=float) for value in values]


def masks(*values: list[int]) -> list[Any]:
    return [np.array(value, dtype=bool) for value in values]


def plain(values: list[float], rewards: list[float], gamma: float, lambd: float) -> list[float]:
    """Eq. 16 as a recursion over a sequence in which everything is sampled."""
    out, follows, value = [], 0.0, 0.0
    for reward, own in zip(reversed(rewards), reversed(values), strict=True):
        follows = reward + gamma * value - own + gamma * lambd * follows
        value = own
        out.append(follows)
    return out[::-1]


def test_the_worked_example() -> None:
    advantages, returns = masked_gae(rows([0.2, 9.0, 0.4]), rows([0, 0, 1]), masks([1, 0, 1]), gamma=0.5, lambd=1.0)
    assert advantages[0] == pytest.approx([0.3, 0, 0.6])
    assert returns[0] == pytest.approx([0.5, 9.0, 1.0])


@pytest.mark.parametrize("seed", range(20))
def test_it_is_plain_gae_of_the_sampled_tokens_whatever_stands_between(seed: int) -> None:
    chance = random.Random(seed)
    gamma, lambd = chance.random(), chance.random()
    many = [
        (
            [chance.gauss(0, 1) for _ in range(size)],
            [chance.gauss(0, 1) for _ in range(size)],
            [int(chance.random() < 0.6) for _ in range(size)],
        )
        for size in (1, 7, 40, 3)
    ]
    kept = [[reward * mask for reward, mask in zip(rewards, mask, strict=True)] for _, rewards, mask in many]
    advantages, returns = masked_gae(
        rows(*(values for values, _, _ in many)),
        rows(*kept),
        masks(*(mask for _, _, mask in many)),
        gamma=gamma,
        lambd=lambd,
    )
    for at, (values, rewards, mask) in enumerate(many):
        places = [place for place, sampled in enumerate(mask) if sampled]
        alone = plain([values[place] for place in places], [rewards[place] for place in places], gamma, lambd)
        assert advantages[at][places] == pytest.approx(alone)
        assert returns[at][places] == pytest.approx([a + values[p] for a, p in zip(alone, places, strict=True)])
        others = [place for place in range(len(mask)) if place not in places]
        assert not advantages[at][others].any()
        assert (returns[at][others] == np.array(values)[others]).all()


def test_a_reward_between_turns_belongs_to_the_turn_before_it() -> None:
    between, _ = masked_gae(rows([0.0] * 4), rows([0, 0, 2, 0]), masks([1, 1, 0, 1]), gamma=1.0, lambd=1.0)
    at_turn, _ = masked_gae(rows([0.0] * 4), rows([0, 2, 0, 0]), masks([1, 1, 0, 1]), gamma=1.0, lambd=1.0)
    assert between[0] == pytest.approx(at_turn[0])


def test_by_turn_nothing_is_discounted_within_a_turn() -> None:
    mask = masks([1, 1, 1, 0, 0, 1, 1])
    advantages, _ = masked_gae(rows([0.0] * 7), rows([0, 0, 0, 0, 0, 0, 8]), mask, gamma=0.5, lambd=1.0, unit="turn")
    assert advantages[0] == pytest.approx([4, 4, 4, 0, 0, 8, 8])


def test_a_response_that_was_cut_off_goes_on_with_its_last_value() -> None:
    given = rows([1.0, 3.0]), rows([0, 0]), masks([1, 1])
    ended, _ = masked_gae(*given, gamma=1.0, lambd=1.0)
    cut, _ = masked_gae(*given, gamma=1.0, lambd=1.0, bootstrapped=[True])
    assert ended[0] == pytest.approx([-1, -3])
    assert cut[0] == pytest.approx([2, 0])


def test_responses_of_different_lengths_do_not_touch() -> None:
    long = rows([0.5] * 30)[0], rows([0.0] * 29 + [1])[0], masks([1] * 30)[0]
    short = rows([0.1])[0], rows([1])[0], masks([1])[0]
    nothing = rows([0.3, 0.3])[0], rows([1, 1])[0], masks([0, 0])[0]
    together, _ = masked_gae(
        *(list(column) for column in zip(long, short, nothing, strict=True)),
        gamma=0.9,
        lambd=0.8,
        bootstrapped=[False, True, True],
    )
    for one, alone in zip(together, (long, short, nothing), strict=True):
        cut = [alone is not long]
        expected, _ = masked_gae(*([part] for part in alone), gamma=0.9, lambd=0.8, bootstrapped=cut)
        assert one == pytest.approx(expected[0])
    assert not together[2].any()


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvariantError, match="2 values, 1 rewards and 2 mask entries"):
        masked_gae(rows([0.0, 0.0]), rows([0]), masks([1, 1]), gamma=1.0, lambd=1.0)

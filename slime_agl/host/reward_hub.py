"""slime's reward options; stands in for `slime.rollout.rm_hub`.

The rules are `math`, `f1` and `random`, each also as `boxed_...`.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from slime_agl.host.grading import boxed_answer, f1, math_correct
from slime_agl.host.pieces import resolve
from slime_agl.host.rewards import reward_type

_BOXED = "boxed_"
_RULES = {
    "math": lambda response, label: int(math_correct(response, label)),
    "f1": f1,
    "random": lambda response, label: random.randint(0, 1),
}


async def async_rm(args: Any, sample: Any, **kwargs: Any) -> Any:
    """Reward of one sample: its own custom_rm_path, else args.custom_rm_path, else the rule `rm_type` names.

    Raises:
        NotImplementedError: no rule is named, or none of that name exists here.
    """
    path = sample.custom_rm_path or args.custom_rm_path
    if path:
        return await resolve("load_function")(path)(args, sample, **kwargs)
    name = reward_type(args, sample)
    response = sample.response
    if name.startswith(_BOXED):
        name, response = name.removeprefix(_BOXED), boxed_answer(response) or ""
    if not name:
        raise NotImplementedError(
            "no reward is named: set --custom-rm-path or --rm-type, or give a row's metadata an rm_type"
        )
    if name not in _RULES:
        raise NotImplementedError(
            f"rm_type {name!r} needs slime; without it there are {', '.join(_RULES)}; "
            "use one of those, --custom-rm-path, or put slime on PYTHONPATH"
        )
    return _RULES[name](response, sample.label)


async def batched_async_rm(args: Any, samples: list[Any], **kwargs: Any) -> list[Any]:
    """Rewards of samples, in order. args.custom_rm_path gets all samples in one call."""
    if args.custom_rm_path is not None:
        return await resolve("load_function")(args.custom_rm_path)(args, samples, **kwargs)
    return await asyncio.gather(*(async_rm(args, sample, **kwargs) for sample in samples))

"""The guide's table of what one execution weighs in the loss, by `agl.loss_unit`."""

from __future__ import annotations

from slime_agl.host.defaults import SEGMENT_REDUCER

# Executions of one step: trained tokens of each Sample.
EXECUTIONS: dict[str, tuple[int, ...]] = {
    "short: 10 tokens": (10,),
    "long: 100 tokens": (100,),
    "branched: 10, 20 and 70 tokens": (10, 20, 70),
    "failed: masked": (0,),
}
FLAGS = {
    "execution": "none: slime's default",
    "token": "`--calculate-per-token-loss`",
    "segment": f"`--custom-pg-loss-reducer-function-path {SEGMENT_REDUCER}`",
}


def weights(unit: str) -> list[list[float]]:
    """Per execution and Sample, the weight of one of its tokens in the loss, times the number of executions."""
    count = len(EXECUTIONS)
    # slime counts a Sample without trained tokens as one token.
    tokens = sum(max(1, length) for lengths in EXECUTIONS.values() for length in lengths)
    return [
        [
            {"execution": 1 / max(1, sum(lengths)), "token": count / tokens, "segment": 1 / max(1, length)}[unit]
            for length in lengths
        ]
        for lengths in EXECUTIONS.values()
    ]


def table() -> str:
    """Return Markdown: the weight of each execution as a whole, where 1 is an equal share of the step."""
    heads = ["each ... once", "slime's flags", *EXECUTIONS, "a token of the long one, against one of the short"]
    lines = [heads, ["---"] * len(heads)]
    for unit, flags in FLAGS.items():
        found = weights(unit)
        whole = [
            sum(weight * length for weight, length in zip(given, lengths, strict=True))
            for given, lengths in zip(found, EXECUTIONS.values(), strict=True)
        ]
        ratio = found[1][0] / found[0][0]
        lines.append([f"`{unit}`", flags, *(f"{value:.2f}" for value in whole), f"{ratio:.2f}"])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

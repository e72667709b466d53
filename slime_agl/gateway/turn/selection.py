"""Choose which turns train: an agent's own conversations, and not its judges, titles or summaries.

What is not chosen is answered, committed and continued like any other turn; only its tokens do not train.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import takewhile

from slime_agl.chat.template.messages import normalise
from slime_agl.config.train import TrainConfig
from slime_agl.gateway.request import Message, TurnRequest
from slime_agl.trace.turn import SKIPPED

Rule = tuple[str, Callable[[TurnRequest], bool]]


class Selection:
    """The rules of `agl.train`, compiled."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)

    @classmethod
    def of(cls, config: TrainConfig) -> Selection | None:
        """The rules that are set; None without any, so that turns pass none."""
        rules = [
            (SKIPPED + what, _rule(getattr(config, prefix + what), found, wanted=not prefix))
            for what, found in _FINDS.items()
            for prefix in ("", "except_")
            if getattr(config, prefix + what) is not None
        ]
        return cls(rules) if rules else None

    def skipped(self, request: TurnRequest) -> str:
        """Return why the turn of a request does not train, '' if it does."""
        return next((reason for reason, trains in self._rules if not trains(request)), "")


def _rule(
    pattern: str, found: Callable[[re.Pattern[str], TurnRequest], bool], *, wanted: bool
) -> Callable[[TurnRequest], bool]:
    compiled = re.compile(pattern)
    return lambda request: found(compiled, request) is wanted


def _in_system(pattern: re.Pattern[str], request: TurnRequest) -> bool:
    return pattern.search(system_prompt(request)) is not None


def _is_model(pattern: re.Pattern[str], request: TurnRequest) -> bool:
    return pattern.fullmatch(request.model) is not None


def _is_tool(pattern: re.Pattern[str], request: TurnRequest) -> bool:
    return any(pattern.fullmatch(tool["function"]["name"]) for tool in request.tools or ())


_FINDS = {"system": _in_system, "model": _is_model, "tools": _is_tool}


def system_prompt(request: TurnRequest) -> str:
    """The leading system messages, one per line; of a prompt that the agent rendered, all of it, or '' if it is ids."""
    if request.prompt is not None:
        return request.prompt if isinstance(request.prompt, str) else ""
    leading = list(takewhile(_is_system, request.messages))
    return "\n".join(str(message["content"]) for message in normalise(leading))


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")

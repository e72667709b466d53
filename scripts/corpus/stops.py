"""Stop lists that a run might use for a template, right and wrong ones."""

from __future__ import annotations

from collections.abc import Callable

from corpus.stock import NO_TOKEN, special_tokens

SAID, CALLED, NEXT, RESULT = "wordsaid", "wordcalled", "wordnext", "wordresult"
USER, ANSWER = {"role": "user", "content": "wordfirst"}, {"role": "assistant", "content": SAID}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "c00000000", "type": "function", "function": {"name": "look", "arguments": {"it": CALLED}}},
    ],
}
TOLD = {"role": "tool", "content": RESULT, "tool_call_id": "c00000000", "name": "look"}
TALKS = (
    [USER, ANSWER, {**USER, "content": NEXT}],
    [USER, CALLING, TOLD],
    [USER, CALLING, TOLD, {**USER, "content": NEXT}],
)

Render = Callable[[list[dict]], str]


def stop_lists(render: Render, eos: str) -> dict[str, tuple[str, ...]]:
    """Return lists by name, without those that a template has no token for.

    render: renders messages, '' if the template rejects them.
    """
    said, called = render(TALKS[0]), render(TALKS[1])
    closer = _first(_between(said, SAID, NEXT))
    call_closer = _first(_between(called, CALLED, RESULT))
    opener = _last(_between(said, SAID, NEXT))
    behind = _first(called.partition(RESULT)[2]) or _first(said.partition(NEXT)[2])
    lists = {
        "complete": (eos, closer, call_closer),
        "eos": (eos,),
        "closer": (closer,),
        "opener": (opener,),
        "behind": (behind,),
        "unrelated": (NO_TOKEN,),
    }
    found = {name: tuple(sorted({token for token in tokens if token})) for name, tokens in lists.items()}
    return {name: tokens for name, tokens in found.items() if tokens}


def _between(text: str, begin: str, end: str) -> str:
    after = text.partition(begin)[2]
    return after.partition(end)[0] if end in after else after


def _first(text: str) -> str:
    return next(iter(special_tokens([text])), "")


def _last(text: str) -> str:
    return next(reversed(special_tokens([text])), "")

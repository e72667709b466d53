"""System messages that a template does not take where they stand."""

from __future__ import annotations

import itertools

import pytest

from slime_agl.chat.template.systems import Systems


def told(*words: str) -> list[dict]:
    """Messages as `role:content`, or a role alone."""
    return [
        {"role": role, "content": content or f"{role} says"}
        for role, _, content in (word.partition(":") for word in words)
    ]


@pytest.mark.parametrize(
    ("systems", "first", "sent", "shown"),
    [
        (Systems(), True, ("system:a", "system:b", "user:c", "system:d"), None),
        (Systems(folds=True), True, ("system:a", "system:b", "user:c"), ("system:a\n\nb", "user:c")),
        (Systems(folds=True), True, ("system:a", "user:c"), None),
        (Systems(folds=True), False, ("system:a", "system:b"), None),
        (Systems(later="as_user"), True, ("system:a", "user:b", "system:c"), ("system:a", "user:b", "user:c")),
        (Systems(later="as_user"), False, ("system:a",), ("user:a",)),
        (Systems(later="as_user"), False, ("tool:a", "system:b"), ("tool:a", "user:b")),
        (Systems(later="joined"), True, ("system:a", "user:b", "system:c"), ("system:a", "user:b\n\nc")),
        (Systems(later="joined"), False, ("system:a", "system:b", "user:c"), ("user:a\n\nb\n\nc",)),
        (Systems(later="joined"), False, ("system:a", "system:b"), ("user:a\n\nb",)),
        (Systems(later="joined"), False, ("tool:a", "tool:b", "system:c"), ("tool:a", "tool:b\n\nc")),
        (Systems(later="joined"), True, ("system:a", "assistant:b", "user:c"), None),
        (Systems(later="joined"), False, ("system:a", "assistant:b"), ("user:a", "assistant:b")),
    ],
)
def test_the_first_stays_and_later_ones_are_shown_as_the_template_can(
    systems: Systems, first: bool, sent: tuple[str, ...], shown: tuple[str, ...] | None
) -> None:
    given = told(*sent)
    assert systems.shown(given, first=first) == told(*(shown or sent))
    assert given == told(*sent), "the input is not modified"


@pytest.mark.parametrize("later", ["as_user", "joined"])
def test_what_is_shown_depends_on_nothing_beyond_the_neighbouring_assistant_turns(later: str) -> None:
    systems = Systems(folds=True, later=later)
    gaps = [("system:a", "system:b", "user:c", "system:d"), ("tool:e", "system:f"), ("system:g", "user:h", "system:i")]
    whole = list(itertools.chain.from_iterable([*told(*gap), *told("assistant")] for gap in gaps))
    apart = [[*systems.shown(told(*gap), first=at == 0), *told("assistant")] for at, gap in enumerate(gaps)]
    assert systems.shown(whole, first=True) == list(itertools.chain.from_iterable(apart))


@pytest.mark.parametrize("sent", [("user:b", "system:c"), ("system:c", "user:b")])
def test_a_message_is_joined_to_one_with_images(sent: tuple[str, ...]) -> None:
    messages = told(*sent)
    for message in messages:
        if message["role"] == "user":
            message["content"] = [{"type": "image", "image": "data:x"}, {"type": "text", "text": "b"}]
    (one,) = Systems(later="joined").shown(messages, first=False)
    texts = [part.get("text") for part in one["content"]]
    assert texts == ([None, "b", "c"] if sent[0] == "user:b" else ["c", None, "b"])

"""Read the tools of a Responses request: functions, custom tools, and namespaces of both.

A namespace groups functions that the client runs. Templates know functions only, so each is shown under the names of
both, `NAMESPACE__FUNCTION`; a call goes back to the client with both in the fields it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from slime_agl.chat.template.tools import Tools
from slime_agl.gateway.protocols import fields
from slime_agl.gateway.protocols.chat import forced_tool
from slime_agl.gateway.protocols.custom import custom_tool
from slime_agl.gateway.protocols.hosted import hosted
from slime_agl.gateway.refusal import Refusal, bad_field

CUSTOM = "custom"
SEPARATOR = "__"

Spaces = Mapping[str, tuple[str, str]]
"""Namespace and function, by the name that the model is shown."""


class Offer(Struct, frozen=True):
    """The tools in chat shape, TurnRequest.forced, the functions that stand in namespaces, and the custom tools.

    customs: by the names that the model is shown.
    """

    tools: Tools | None
    forced: str
    spaces: Spaces = field(default_factory=dict)
    customs: frozenset[str] = frozenset()


def shown_name(namespace: object, name: str) -> str:
    """The name that the model is shown of a function. namespace: anything but a non-empty text means none."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return namespace + name if namespace.endswith(SEPARATOR) else f"{namespace}{SEPARATOR}{name}"


def read_tools(body: Mapping[str, Any], count: fields.Count) -> Offer:
    """Read `tools` and `tool_choice`.

    Raises:
        Refusal: 400 for a tool that is none of these and not hosted, two tools of one name, or a choice that cannot
            be met.
    """
    tools: list[dict[str, Any]] = []
    spaces: dict[str, tuple[str, str]] = {}
    customs: set[str] = set()
    for tool, where, place in _flat(fields.objects(body, "tools")):
        shown = _shown(tool, where, count)
        if shown is None:
            continue
        name = shown["function"]["name"]
        if tool.get("type") == CUSTOM:
            customs.add(name)
        if place is not None:
            spaces[name] = place
        tools.append(shown)
    if spaces or customs:
        _check_names(tools)
    choice = body.get("tool_choice")
    if choice in (None, "auto"):
        return Offer(Tools(tools) if tools else None, "", spaces, frozenset(customs))
    if choice == "none":
        return Offer(None, "")
    name = choice.get("name") if isinstance(choice, dict) else None
    if isinstance(name, str):
        name = shown_name(choice.get("namespace"), name)
    return Offer(Tools(tools), forced_tool(choice, name, tools), spaces, frozenset(customs))


def _flat(given: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str, tuple[str, str] | None]]:
    """Yield tools as the model is to see them, with their field in the request, and their namespace and own name."""
    for at, tool in enumerate(given):
        where = f"tools[{at}]"
        if tool.get("type") == "namespace":
            yield from _members(tool, where)
        else:
            yield tool, where, None


def _members(space: Mapping[str, Any], where: str) -> Iterator[tuple[dict[str, Any], str, tuple[str, str] | None]]:
    """Yield the tools of a namespace. The first one tells what it is for."""
    if not isinstance(space.get("name"), str) or not space["name"]:
        raise bad_field(where, f"{where} is a namespace, so it must have a name")
    told = space.get("description")
    for at, tool in enumerate(fields.objects(space, "tools")):
        inner = f"{where}.tools[{at}]"
        if tool.get("type") not in ("function", CUSTOM) or not isinstance(tool.get("name"), str):
            yield tool, inner, None
            continue
        texts = [text for text in (told, tool.get("description")) if isinstance(text, str) and text]
        named = {**tool, "name": shown_name(space["name"], tool["name"])}
        described = {**named, "description": "\n\n".join(texts)} if texts else named
        yield described, inner, (space["name"], tool["name"])
        told = None


def _shown(tool: Mapping[str, Any], where: str, count: fields.Count) -> dict[str, Any] | None:
    """Return a tool in chat shape, or None if a service would run it."""
    if tool.get("type") == CUSTOM:
        return custom_tool(tool, where, count)
    if tool.get("type") == "function" and isinstance(tool.get("name"), str):
        return _function(tool)
    if hosted(tool, count):
        return None
    raise _unknown(tool, where)


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": kept}


def _check_names(tools: list[dict[str, Any]]) -> None:
    names = [tool["function"]["name"] for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise bad_field("tools", f"tools has two tools that the model would know as {twice!r}; rename one")


def _unknown(tool: Mapping[str, Any], where: str) -> Refusal:
    return bad_field(
        where,
        f"{where} is of type {tool.get('type')!r}; this endpoint takes functions {{type: 'function', name, ...}}, "
        "custom tools and namespaces of them",
    )

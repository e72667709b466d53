"""Read custom tools, whose input is one text. How the model is shown them: see `slime_agl.chat.template.freeform`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_agl.chat.template.freeform import as_function
from slime_agl.gateway.protocols import fields
from slime_agl.gateway.refusal import bad_field

UNBOUND = fields.IGNORED + "tools.format"


def custom_tool(tool: Mapping[str, Any], where: str, count: fields.Count) -> dict[str, Any]:
    """Return the function that stands for a custom tool.

    tool: {name, description, format}; format's grammar stands in it (Responses) or in a field of its own (chat). A
    grammar is shown to the model, which may leave it; that is counted.

    Raises:
        Refusal: 400, naming the field.
    """
    name, description = tool.get("name"), tool.get("description") or ""
    if not isinstance(name, str) or not name or not isinstance(description, str):
        raise bad_field(where, f"{where} is a custom tool, so it must have a name, and a description that is a text")
    return as_function(name, description, _grammar(tool.get("format"), f"{where}.format", count))


def _grammar(form: object, where: str, count: fields.Count) -> tuple[str, str] | None:
    if form is None:
        return None
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "text":
        return None
    if kind == "grammar" and isinstance(form, Mapping):
        given = form.get("grammar", form)
        found = (given.get("syntax"), given.get("definition")) if isinstance(given, Mapping) else (None, None)
        if isinstance(found[0], str) and isinstance(found[1], str):
            count(UNBOUND)
            return found[0], found[1]
    raise bad_field(where, f"{where} must be {{type: 'text'}} or {{type: 'grammar', syntax, definition}}")

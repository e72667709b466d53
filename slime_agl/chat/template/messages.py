"""Chat messages as agents send them and as chat templates take them.

A *normalised* message has only the keys that templates read: role, content (a string, or a list of text and image parts
if it has images), name, tool_call_id, reasoning_content, and tool_calls with arguments as an object.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping

from msgspec import Struct

from slime_agl.chat.template.freeform import ARGUMENT, custom_call, input_of, read_custom_call
from slime_agl.errors import TemplateError

# Leads the URL of an image in a file; `Vision` decides which files may be read.
FILE = "file://"
IMAGE_TYPES = frozenset({"image_url", "input_image", "image"})
ROLES = ("system", "user", "assistant", "tool")
THINK, END_THINK = "<think>", "</think>"
# Types of text parts, and the key of the text.
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class ToolCall(Struct, frozen=True):
    """A call by the model. id: the agent's answer refers to it. arguments: JSON text, exactly as sent to the agent."""

    id: str
    name: str
    arguments: str


class Reply(Struct, frozen=True):
    """A finished turn, parsed.

    text, reasoning: '' if absent. ill_formed: `text` is raw, because its tool-call syntax is broken or cut.
    stopped_by: the stop string that was sampled after `text` and not sent to the agent.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    ill_formed: bool = False
    stopped_by: str = ""

    def __post_init__(self) -> None:
        if self.ill_formed and self.tool_calls:
            raise ValueError(f"an ill-formed reply has {len(self.tool_calls)} tool calls; it must have none")


def normalise(messages: list[dict]) -> list[dict]:
    """Reduce OpenAI chat messages to the form that chat templates take.

    None becomes '', text parts are joined with one space (as SGLang does for templates that take strings), images in
    OpenAI's and Anthropic's formats become {type: image, image: url}, 'developer' becomes 'system', JSON arguments
    become objects; text that is not a JSON object stays text. Keys that no template reads are dropped. The input is not
    modified. Idempotent.

    Raises:
        TemplateError: an unknown role, or an unsupported part; names the message's index.
    """
    return [_normalise_one(message, index) for index, message in enumerate(messages)]


def same_reply(reply: Reply, message: dict) -> bool:
    """Check that an assistant message, raw or normalised, echoes `reply`.

    Calls are compared by name and parsed arguments, in order, whatever their ids; a client that writes calls into the
    content names them by id. Text is compared up to white space, with or without the stop string that ended it; a
    client that echoes calls with `content: null` drops the text beside them.
    Reasoning may be echoed in its own field, inside the content, or not at all.
    """
    if message.get("role") != "assistant":
        return False
    calls = message.get("tool_calls") or []
    if reply.tool_calls and not calls:
        written = _content(message.get("content"), "the assistant message")
        return all(call.id and call.id in written for call in reply.tool_calls)
    if len(calls) != len(reply.tool_calls):
        return False
    if any(not _same_call(ours, theirs) for ours, theirs in zip(reply.tool_calls, calls, strict=True)):
        return False
    if calls and message.get("content") is None:
        return True
    theirs = _content(message.get("content"), "the assistant message")
    readings = [_words(reply.text), _words(_spoken(reply.text)), _words(reply.text + reply.stopped_by)]
    return _words(theirs) in readings or _words(_spoken(theirs)) in readings


def same_message(a: dict, b: dict) -> bool:
    """Check that two messages are the same once normalised, or that assistant message `b` echoes `a`.

    Raises:
        TemplateError: they differ as sent, and one of them cannot be normalised.
    """
    if a == b:
        return True
    one, other = normalise([a, b])
    # `b` as sent: normalising hides that its content is null.
    return one == other or (one["role"] == "assistant" and same_reply(_as_reply(one), b))


def reply_message(reply: Reply) -> dict:
    """Return `reply` as a normalised assistant message."""
    message: dict[str, object] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [call_entry(call.id, call.name, call.arguments) for call in reply.tool_calls]
    return message


def wire_message(reply: Reply, customs: Collection[str] = ()) -> dict:
    """Return `reply` as the assistant message of a chat completion, arguments as JSON text.

    customs: names of custom tools (see `freeform`).
    """
    message: dict[str, object] = {"role": "assistant", "content": reply.text or (None if reply.tool_calls else "")}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            custom_call(call.id, call.name, input_of(call.arguments))
            if call.name in customs
            else {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    return message


def call_entry(call_id: str, name: str, arguments: object) -> dict:
    """Return one normalised entry of `tool_calls`."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": as_object(arguments)}}


def as_object(arguments: object) -> object:
    """Parse the JSON text of an object; None and '' become {}; anything else is returned unchanged."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def split_think(text: str, *, opened: bool = False) -> tuple[str, str] | None:
    """Split `<think>reasoning</think>rest` into (reasoning, rest), or return None without reasoning.

    opened: the prompt already wrote `<think>`. If the reasoning is not closed, rest is ''.
    """
    head = text.lstrip()
    if head.startswith(THINK):
        head = head[len(THINK) :]
    elif not opened:
        return None
    reasoning, _, rest = head.partition(END_THINK)
    return reasoning.strip("\n"), rest.lstrip("\n")


def _normalise_one(message: dict, index: int) -> dict:
    where = f"messages[{index}]"
    role = message.get("role")
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise TemplateError(f"{where} has role {role!r}; a chat template takes {', '.join(ROLES)} and developer")
    content = message.get("content")
    out: dict[str, object] = {"role": role}
    if isinstance(content, list) and has_images(content):
        out["content"] = _parts(content, where, role)
    else:
        out["content"] = _content(content, where)
    for key in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(message.get(key), str):
            out[key] = message[key]
    if message.get("tool_calls"):
        out["tool_calls"] = [
            _normalise_call(call, f"{where}.tool_calls[{k}]") for k, call in enumerate(message["tool_calls"])
        ]
    return out


def _normalise_call(call: Mapping, where: str) -> dict:
    custom = read_custom_call(call)
    if custom is not None:
        return call_entry(call.get("id") or "", custom[0], {ARGUMENT: custom[1]})
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(
            f"{where} has type {call.get('type')!r} and names no function; send calls of functions or custom tools"
        )
    return call_entry(call.get("id") or "", function["name"], function.get("arguments"))


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TemplateError(f"{where} has content of type {type(content).__name__}; send a string or a list of parts")
    return " ".join(_part(part, f"{where}.content[{k}]") for k, part in enumerate(content))


def has_images(content: object) -> bool:
    """Check a message's content for image parts, in any format."""
    return isinstance(content, list) and any(map(_is_image, content))


def _parts(content: list, where: str, role: str) -> list[dict[str, str]]:
    if role not in ("user", "tool"):
        raise TemplateError(f"{where} has role {role} and contains an image; only user and tool messages may")
    return [
        {"type": "image", "image": _image_url(part, f"{where}.content[{k}]")}
        if _is_image(part)
        else {"type": "text", "text": _part(part, f"{where}.content[{k}]")}
        for k, part in enumerate(content)
    ]


def _is_image(part: object) -> bool:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return isinstance(kind, str) and kind in IMAGE_TYPES


def _image_url(part: Mapping, where: str) -> str:
    """Return the URL of an image part: OpenAI's `image_url` or `input_image`, Anthropic's `source`, or normalised."""
    given = part.get("image_url", part.get("image", part.get("source")))
    given = given if isinstance(given, Mapping) else {"url": given, "detail": part.get("detail")}
    if given.get("type") == "base64":
        return f"data:{given.get('media_type')};base64,{given.get('data')}"
    if given.get("detail") not in (None, "auto", "high"):
        raise TemplateError(f"{where} asks for detail {given['detail']!r}; images are sent unchanged, use auto or high")
    url = given.get("url")
    if not isinstance(url, str) or not url.startswith(("data:", "http://", "https://", FILE)):
        raise TemplateError(f"{where} is an image at {str(url)[:60]!r}; give a data:, http:// or https:// URL")
    return url


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    key = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    text = part.get(key) if key and isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise TemplateError(f"{where} has type {kind!r}; send text and images only")
    return text


def _same_call(ours: ToolCall, theirs: Mapping[str, object]) -> bool:
    custom = read_custom_call(theirs)
    if custom is not None:
        return custom == (ours.name, input_of(ours.arguments))
    function = theirs.get("function")
    if not isinstance(function, Mapping) or function.get("name") != ours.name:
        return False
    return _canonical(as_object(ours.arguments)) == _canonical(as_object(function.get("arguments")))


def _canonical(value: object) -> object:
    """Rewrite a JSON value so that == compares JSON: 1 equals 1.0, but neither equals true.

    Many clients parse an integer beyond 64 bits as a float, and echo the float.
    """
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        with contextlib.suppress(OverflowError):
            return float(value)
    return value


def _spoken(text: str) -> str:
    """Drop reasoning that a client echoed inside the content."""
    thought = split_think(text, opened=END_THINK in text)
    return text if thought is None else thought[1]


def _as_reply(message: dict) -> Reply:
    """Parse a normalised assistant message."""
    calls = [(call["id"], call["function"]) for call in message.get("tool_calls", ())]
    return Reply(
        message["content"],
        message.get("reasoning_content", ""),
        tuple(ToolCall(call_id, function["name"], function["arguments"]) for call_id, function in calls),
    )


def _words(text: str) -> list[str]:
    return text.split()

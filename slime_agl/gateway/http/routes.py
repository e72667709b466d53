"""Find the handler of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import unquote

from slime_agl.gateway.http.requests import Answer, Request
from slime_agl.gateway.refusal import Refusal

# Prefix of a path that belongs to an attempt.
ATTEMPT = "/rollout/{rollout_id}/attempt/{attempt_id}/v1"
NAME = "/{name}"
EVENTS = "/events"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Target(NamedTuple):
    """The variable parts of a path, decoded; '' for those it has not."""

    rollout_id: str = ""
    attempt_id: str = ""
    name: str = ""


Handler = Callable[[Request, Target], Awaitable[Answer | None]]


class Routes:
    """Handlers by method and path."""

    def __init__(self) -> None:
        self._attempts: dict[str, dict[str, Handler]] = {}
        self._others: dict[str, dict[str, Handler]] = {}

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Add a route. path: may begin with ATTEMPT and end in NAME. A handler of GET serves HEAD, too."""
        table = self._attempts if path.startswith(ATTEMPT) else self._others
        methods = table.setdefault(path.removeprefix(ATTEMPT), {})
        methods[method] = handler
        if method == "GET":
            methods["HEAD"] = handler

    def find(self, method: str, raw_path: str) -> tuple[Handler, Target]:
        """Return the handler of a request, and the target it names.

        raw_path: percent-encoded, without the query.

        Raises:
            Refusal: 404 for an unknown path, 405 for a method that the path has not.
        """
        pieces = raw_path.split("/", 6)
        if len(pieces) == 7 and pieces[1] == "rollout" and pieces[3] == "attempt" and pieces[5] == "v1":
            # Anthropic's clients append /v1 even to a base URL that already ends in it.
            tail = "/" + pieces[6].removeprefix("v1/")
            methods, name = self._methods(self._attempts, tail)
            target = Target(decoded(pieces[2]), decoded(pieces[4]), decoded(name))
        else:
            methods, target = self._others.get(raw_path), Target()
        if methods is None:
            raise Refusal(404, f"{method} {decoded(raw_path)}: Not Found", type="not_found_error")
        handler = methods.get(method)
        if handler is None:
            raise Refusal(405, f"{method} {decoded(raw_path)}: Method Not Allowed")
        return handler, target

    def within_attempt(self, raw_path: str) -> tuple[Target, str] | None:
        """The attempt that any path belongs to, served or not, and the rest of the path; None if to none."""
        pieces = raw_path.split("/", 5)
        if len(pieces) < 5 or pieces[1] != "rollout" or pieces[3] != "attempt":
            return None
        return Target(decoded(pieces[2]), decoded(pieces[4])), decoded("/" + "".join(pieces[5:]))

    def _methods(self, table: dict[str, dict[str, Handler]], tail: str) -> tuple[dict[str, Handler] | None, str]:
        methods = table.get(tail)
        if methods is not None:
            return methods, ""
        first, _, name = tail[1:].partition("/")
        return (table.get(f"/{first}{NAME}") if name else None), name


def expected(request: Request) -> None:
    """Tell a client that waits for permission to send its body (RFC 9110, section 10.1.1) to send it.

    Raises:
        Refusal: 417, it expects something else.
    """
    said = request.headers["Expect"]
    if said.lower() != "100-continue":
        raise Refusal(417, f"Expect: {said[:100]!r} is not supported, only 100-continue")
    if request.modern:
        request.interim(CONTINUE)


def decoded(piece: str) -> str:
    return unquote(piece) if "%" in piece else piece

"""Refusals of requests. Each protocol gives them its own shape."""

from __future__ import annotations

from slime_agl.errors import SlimeAglError

CONTEXT_OVERFLOW = "context_length_exceeded"
OVERFLOW_WORDS = "maximum context length is"  # for protocols whose errors have no code


class Refusal(SlimeAglError):
    """An error answer: HTTP status, OpenAI's error type and code, and the offending field.

    retry: whether the same request may succeed later. after: the turn whose sequence has no room for the prompt, None
    for other refusals.
    """

    boundary = "request"

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.type = status, message, type
        self.code, self.param, self.retry = code, param, retry
        self.after: int | None = None


# Characters of a refusal's message that are quoted elsewhere.
QUOTED = 400


def quoted(request: str, refusal: Refusal) -> str:
    """One line for logs and errors: the request, the status and code it was refused with, and the message.

    request: method and path within the attempt, such as `POST /v1/messages`.
    """
    words = " ".join(refusal.message.split())
    words = words if len(words) <= QUOTED else words[: QUOTED - 3] + "..."
    return f"{request}: {refusal.status} {refusal.code or refusal.type}: {words}"


def bad_field(param: str, message: str) -> Refusal:
    """400 for a field that is malformed or cannot be honoured."""
    return Refusal(400, message, param=param)


def context_overflow(prompt: int, limit: int, *, least: bool = False) -> Refusal:
    """400 context_length_exceeded: the prompt leaves no room for an answer. least: `prompt` is a lower bound."""
    return Refusal(
        400,
        f"This model's {OVERFLOW_WORDS} {limit} tokens. However, your messages resulted in "
        f"{'at least ' if least else ''}{prompt} tokens.",
        code=CONTEXT_OVERFLOW,
        param="messages",
    )


def overlong(what: str, most: int, unit: str, limit: int) -> Refusal:
    """400 context_length_exceeded without encoding: larger than anything the context can hold."""
    return Refusal(
        400,
        f"This model's {OVERFLOW_WORDS} {limit} tokens. However, you sent {what}; at most {most} {unit} can fit.",
        code=CONTEXT_OVERFLOW,
        param="messages",
    )


def sealed(rollout_id: str, attempt_id: str) -> Refusal:
    return Refusal(
        409,
        f"attempt {attempt_id} of rollout {rollout_id} has ended; requests made after its end are not recorded",
        type="conflict_error",
        code="attempt_sealed",
    )


def unknown_attempt(rollout_id: str, attempt_id: str) -> Refusal:
    return Refusal(
        404,
        f"no attempt {attempt_id} of rollout {rollout_id} is open here; use the base URL that the agent was given",
        type="not_found_error",
        code="attempt_not_found",
    )


def wrong_key() -> Refusal:
    return Refusal(
        401,
        "the API key does not belong to this attempt; pass the `api_key` of the LLM resource the agent was given",
        type="authentication_error",
        code="invalid_api_key",
    )

"""Agent failures as data: tracebacks, codes, and logs that do not flood."""

from __future__ import annotations

import itertools
import logging
import traceback
from collections import Counter
from types import FrameType

from slime_agl.lightning.outcome import FAILED, TIMEOUT, AttemptOutcome

logger = logging.getLogger(__name__)

_PLUMBING = ("agentlightning.", "slime_agl.lightning.", "slime_agl.loops", "asyncio.", "threading")
_RUNNER_LOG = "agentlightning.runner.agent"
_RESOURCES_LOG = "agentlightning.litagent.decorator"


def agent_traceback(error: BaseException) -> str:
    """Format the traceback from the agent's first frame on, or all of it if no frame is the agent's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_PLUMBING):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))


def refusal_code(error: BaseException) -> str:
    """The `error.code` of the refused model call behind an agent's error, '' if there is none.

    Clients of the OpenAI and Anthropic APIs keep it in the exception's `body`; frameworks chain that exception.
    """
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        body = vars(at).get("body")
        inner = body.get("error", body) if isinstance(body, dict) else None
        code = inner.get("code") if isinstance(inner, dict) else None
        if isinstance(code, str):
            return code
        at = at.__cause__ or at.__context__
    return ""


def agent_stack(frame: FrameType) -> str:
    """Format the stack down to a frame, from the agent's first frame on."""
    frames = [at for at, _ in traceback.walk_stack(frame)][::-1]
    own = list(itertools.dropwhile(lambda at: at.f_globals.get("__name__", "").startswith(_PLUMBING), frames))
    stack = traceback.StackSummary.extract((at, at.f_lineno) for at in own or frames)
    return "Stack (most recent call last):\n" + "".join(stack.format())


class FailureLog:
    """Logs the first failure of each kind with its traceback, then only at the 10th, 100th, and so on."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def note(self, outcome: AttemptOutcome) -> None:
        if outcome.status not in (FAILED, TIMEOUT):
            return
        kind = f"{outcome.status}, {outcome.error_type}"
        self._seen[kind] += 1
        count = self._seen[kind]
        if count == 1:
            logger.warning(
                "attempt %s of rollout %s ended as %s (the next of this kind are counted, not shown)\n%s",
                outcome.attempt_id,
                outcome.rollout_id,
                kind,
                outcome.error,
            )
        elif str(count).strip("0") == "1":
            logger.warning("%d attempts have ended as %s", count, kind)


class UpstreamLogs:
    """Filters Agent Lightning's per-attempt log lines between `install` and `remove`.

    Its runner logs a line per completion and a traceback per failure, which outcomes already carry; its agents repeat
    the same remark about resources.
    """

    def __init__(self) -> None:
        self._once = _OncePerMessage()

    def install(self) -> None:
        logging.getLogger(_RUNNER_LOG).addFilter(_nothing)
        logging.getLogger(_RESOURCES_LOG).addFilter(self._once)

    def remove(self) -> None:
        logging.getLogger(_RUNNER_LOG).removeFilter(_nothing)
        logging.getLogger(_RESOURCES_LOG).removeFilter(self._once)


def _nothing(record: logging.LogRecord) -> bool:
    return False


class _OncePerMessage(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        fresh = message not in self._said
        self._said.add(message)
        return fresh

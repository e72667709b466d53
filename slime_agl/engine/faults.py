"""How a try at an engine fails when another try may mend it."""

from __future__ import annotations


class TryAgain(Exception):
    """The call failed in a way that another try may mend.

    status: HTTP status, None when no answer arrived.
    lost: the request may still run at a worker although its answer will not come.
    """

    def __init__(self, words: str, *, status: int | None = None, lost: bool = False) -> None:
        super().__init__(words)
        self.status = status
        self.lost = lost


class WrongAnswer(TryAgain):
    """The engine answered, but the answer is another request's, contradicts itself or cannot be true."""

    def __init__(self, rid: str, words: str, *, lost: bool = False) -> None:
        super().__init__(f"the answer to request {rid} {words}", status=200, lost=lost)

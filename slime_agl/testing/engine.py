"""Backend of the scripted server: answers each `/generate` from the script, at once or once released.

The local engine's server does the HTTP, so requests, answers and errors look like SGLang's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from slime_agl.engine.route import PROBE_RID
from slime_agl.errors import EngineError, EngineRejected
from slime_agl.local.engine.backend import BackendInfo, Deliver, Finish, Generated, GenerateRequest, Load
from slime_agl.local.engine.wire import prompt_too_long
from slime_agl.testing.answers import Answer, Shaped, decode, shape
from slime_agl.testing.record import Received, Script

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Pending:
    """A request whose answer is ready and not yet sent."""

    request: Received
    shaped: Shaped
    deliver: Deliver


class ScriptEngine:
    """A Backend over a script. `changed` guards its state, and is notified when a request arrives or ends.

    The part of an answer that an abort or a disconnect cuts off answers the request that continues it.
    """

    def __init__(self, script: Script) -> None:
        self.changed = threading.Condition()
        self.in_flight = 0
        self._script = script
        self._pending: list[Pending] = []
        self._unfinished: dict[tuple[int, ...], list[Shaped]] = {}
        self._holding = self._paused = False
        self._deciding: int | None = None  # the thread that is choosing an answer

    # for the test, from any thread

    def hold(self) -> None:
        with self.changed:
            self._holding = True

    def release(self, count: int | None) -> None:
        with self.changed:
            # A request that the test saw arrive is among those released, even if its answer is still being chosen.
            self.changed.wait_for(lambda: self._deciding in (None, threading.get_ident()))
            self._holding = self._holding and count is not None
            self._let_go(count)

    # for the server

    @property
    def info(self) -> BackendInfo:
        script = self._script
        return BackendInfo("fake", script.context_length, len(script.tokenizer), max_running=1_000)

    @property
    def weight_version(self) -> str:
        return self._script.weight_version

    @property
    def healthy(self) -> bool:
        return True

    def start(self) -> None:
        """Nothing to start: answers are made on the server's thread."""

    def close(self) -> None:
        """Nothing to close: pending requests lose their connection."""

    def read(self, body: object, headers: Mapping[str, str]) -> GenerateRequest:
        """Accept any fields, as tests check them; refuse only requests that cannot be answered."""
        ids = body.get("input_ids") if isinstance(body, dict) else None
        if (
            not isinstance(body, dict)
            or not isinstance(ids, list)
            or not all(isinstance(token, int) for token in ids)
            or body.get("stream")
        ):
            raise EngineRejected("a request needs `input_ids`, one flat list of token ids, and no `stream`", status=400)
        rid = str(body.get("rid") or f"fake-{len(self._script.requests)}")
        return GenerateRequest(rid=rid, input_ids=tuple(ids), return_logprob=True, body=body, headers=headers)

    def submit(self, request: GenerateRequest, deliver: Deliver) -> None:
        if request.rid == PROBE_RID:
            deliver(self._probed(request))
            return
        received = self._receive(request)
        try:
            pending = Pending(received, self._answer(received), deliver)
        except EngineError as error:
            self._decided()
            self._ended()
            deliver(error)
            return
        with self.changed:
            self._pending.append(pending)
            self._decided()
            if not (self._holding or self._paused):
                self._send(pending, pending.shaped)

    def abort(self, rid: str | None) -> None:
        with self.changed:
            for pending in [pending for pending in self._pending if rid is None or pending.request.rid.startswith(rid)]:
                sent = min(self._script.partial, len(pending.shaped.ids))
                self._keep_rest(pending, sent)
                self._send(pending, pending.shaped.first(sent))

    def drop(self, rid: str) -> None:
        with self.changed:
            for pending in [pending for pending in self._pending if pending.request.rid == rid]:
                self._pending.remove(pending)
                self._keep_rest(pending, 0)
                self._ended()

    def pause(self, kind: str) -> None:
        with self.changed:
            self._paused = True
            if kind == "abort":
                self.abort(None)

    def resume(self) -> None:
        with self.changed:
            self._paused = False
            self._let_go(0 if self._holding else None)

    def flush_cache(self) -> bool:
        return True

    def update_weights(self, path: str, weight_version: str) -> None:
        self._script.weight_version = weight_version

    def load(self) -> Load:
        return Load(running=self.in_flight, waiting=0)

    def _receive(self, request: GenerateRequest) -> Received:
        script = self._script
        headers = {name.lower(): value for name, value in request.headers.items()}
        text = decode(script.tokenizer, request.input_ids)
        with self.changed:
            self.in_flight += 1  # before the test hears that it has arrived
            self._deciding = threading.get_ident()
            received = Received(
                index=len(script.requests),
                input_ids=request.input_ids,
                sampling_params=_params(request),
                headers=headers,
                rid=request.rid,
                json=request.body,
                text=text,
            )
            script.requests.append(received)
            self.changed.notify_all()
        return received

    def _answer(self, request: Received) -> Shaped:
        """Raises EngineError: a scripted fault, a prompt that is too long, or no answer."""
        script, prompt = self._script, len(request.input_ids)
        if (fault := script.next_fault()) is not None:
            status, message = fault
            raise EngineError(message, status=status)
        if prompt >= script.context_length:
            raise prompt_too_long(prompt, script.context_length)
        if rest := self._unfinished.get(request.input_ids):
            shaped = rest.pop(0)
            if not rest:
                del self._unfinished[request.input_ids]
            return shaped
        return shape(self._scripted(request), script.tokenizer, request.sampling_params, prompt_length=prompt)

    def _scripted(self, request: Received) -> Answer:
        try:
            answer = self._script.next_answer(request)
        except Exception as error:  # the responder is the test's own code: its error goes to the client
            logger.exception("the responder failed on request %d", request.index)
            message = f"the responder given to answer_with raised {error!r} on request {request.index}"
            raise EngineRejected(message, status=400) from error
        if answer is None:
            raise EngineRejected(_unanswered(request), status=400)
        return answer

    def _probed(self, request: GenerateRequest) -> Generated:
        """Answer a probe for replay data, which is not part of the script, and list it in `control`."""
        script, prompt = self._script, request.input_ids
        script.control.append(("/generate", request.body))
        received = Received(
            index=-1,
            input_ids=prompt,
            sampling_params=_params(request),
            headers={},
            rid=PROBE_RID,
            json=request.body,
            text="",
        )
        return self._generated(received, shape(Answer(ids=[1]), script.tokenizer, {}, prompt_length=len(prompt)))

    def _let_go(self, count: int | None) -> None:
        if not self._paused:
            for pending in self._pending[:count]:
                self._send(pending, pending.shaped)

    def _keep_rest(self, pending: Pending, sent: int) -> None:
        key = pending.request.input_ids + pending.shaped.ids[:sent]
        self._unfinished.setdefault(key, []).append(pending.shaped.after(sent))

    def _send(self, pending: Pending, shaped: Shaped) -> None:
        self._pending.remove(pending)
        self._script.sent(pending.request, shaped)
        generated = self._generated(pending.request, shaped)
        self._ended()
        pending.deliver(generated)

    def _decided(self) -> None:
        with self.changed:
            self._deciding = None
            self.changed.notify_all()

    def _ended(self) -> None:
        with self.changed:
            self.in_flight -= 1
            self.changed.notify_all()

    def _generated(self, request: Received, shaped: Shaped) -> Generated:
        script = self._script
        replay = script.replay.meta(request.json, request.input_ids, shaped.ids) if script.replay else {}
        return Generated(
            output_ids=shaped.ids,
            logprobs=shaped.logprobs,
            text=decode(script.tokenizer, shaped.ids),
            prompt_tokens=len(request.input_ids),
            weight_version=script.weight_version,
            finish=Finish(shaped.finish, matched=shaped.matched),
            meta={**replay, **shaped.meta},
        )


def _params(request: GenerateRequest) -> Mapping:
    params = request.body.get("sampling_params")
    return params if isinstance(params, Mapping) else {}


def _unanswered(request: Received) -> str:
    return (
        f"the fake SGLang server has no answer for request {request.index} (rid {request.rid}, "
        f"{len(request.input_ids)} tokens, ending in {request.text[-80:]!r}); "
        "script one with say(...), call_tool(...) or answer_with(...)"
    )

"""An SGLang-shaped server that samples what was planned and gives each token a unique logprob.

It identifies the call by the last tag in the decoded prompt, without help from the product.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from slime_agl.loops import LoopThread
from tests.oracle.sayings import TAG, Plan

STEP = 2.0**-24  # float32 holds each multiple up to -1 exactly, float64 all of them
CONTEXT = 1 << 20
PATIENCE_SECONDS = 60.0

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer that was sent. first: the number of its first token; token k has the logprob -(first + k) * STEP."""

    key: Key
    word: str
    shown: tuple[int, ...]
    ids: tuple[int, ...]
    first: int
    finish: str
    version: str
    text: str

    def logprobs(self) -> list[float]:
        return [-(self.first + at) * STEP for at in range(len(self.ids))]


@dataclass(slots=True, eq=False)
class _Waiting:
    rid: str
    key: Key
    answer: asyncio.Future[bool]


class OracleEngine:
    """plan, withdraw and the waits may be called from any thread; `language` may change while nothing is in flight.

    answers: everything sent, in order. surprises: unplanned requests.
    """

    def __init__(self) -> None:
        self.answers: list[Answered] = []
        self.surprises: list[str] = []
        self.language: Any = None
        self.url = ""
        self._plans: dict[Key, deque[Plan]] = defaultdict(deque)
        self._rests: dict[tuple[int, ...], deque[tuple[Key, Plan]]] = defaultdict(deque)
        self._waiting: list[_Waiting] = []
        self._firsts: list[int] = []
        self._next, self._version = 1, 1
        self._thread = LoopThread("oracle-engine")

    # from the agents' side

    def plan(self, key: Key, plans: list[Plan]) -> None:
        self._plans[key].extend(plans)

    def withdraw(self, key: Key) -> None:
        """Forget the plans of a call that will not ask again."""
        self._plans.pop(key, None)

    async def arrived(self, key: Key) -> None:
        """Wait until a request of the call awaits its release."""
        await self._on_loop(self._until(lambda: any(w.key == key for w in self._waiting)))

    async def gone(self, key: Key) -> None:
        """Wait until no request of the call is waiting."""
        await self._on_loop(self._until(lambda: not any(w.key == key for w in self._waiting)))

    async def release(self, key: Key) -> None:
        async def let_go() -> None:
            for waiting in self._waiting:
                if waiting.key == key and not waiting.answer.done():
                    waiting.answer.set_result(True)

        await self._on_loop(let_go())

    def find(self, logprob: float) -> tuple[Answered, int] | None:
        """Find the answer that sampled the token of this logprob, and the token's position in it."""
        number = round(-logprob / STEP)
        at = bisect_right(self._firsts, number) - 1
        if -number * STEP != logprob or at < 0:
            return None
        answer = self._by_first[self._firsts[at]]
        return (answer, number - answer.first) if number - answer.first < len(answer.ids) else None

    # life

    def __enter__(self) -> OracleEngine:
        self._by_first: dict[int, Answered] = {}
        self._changed = asyncio.Condition()
        self._thread.start()
        self._thread.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._runner.cleanup())
        self._thread.stop()

    async def _open(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort)
        app.router.add_post("/{name:pause_generation|continue_generation|flush_cache}", self._fine)
        for path, fact in self._facts().items():
            app.router.add_get(path, fact)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def _facts(self) -> dict[str, Any]:
        def model() -> dict[str, Any]:
            return {
                "model_path": "oracle",
                "is_generation": True,
                "weight_version": str(self._version),
                "context_length": CONTEXT,
                "tp_size": 1,
                "dp_size": 1,
                "pp_size": 1,
            }

        def loads() -> dict[str, Any]:
            count = len(self._waiting)
            return {
                "loads": [{"dp_rank": 0, "num_running_reqs": count, "num_waiting_reqs": 0, "num_total_reqs": count}]
            }

        def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "oracle", "object": "model", "max_model_len": CONTEXT}]}

        def workers() -> dict[str, Any]:
            worker = {"id": "oracle", "url": self.url, "worker_type": "regular", "is_healthy": True, "load": 0}
            return {"workers": [worker], "total": 1}

        told = {"/health": dict, "/v1/models": models, "/v1/loads": loads, "/workers": workers} | dict.fromkeys(
            ("/get_model_info", "/model_info", "/server_info", "/get_server_info"), model
        )
        return {path: _json(fact) for path, fact in told.items()}

    async def _on_loop(self, coroutine: Any) -> Any:
        return await asyncio.wrap_future(self._thread.submit(coroutine))

    async def _until(self, holds: Any) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(holds)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # the wire

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        shown, rid = tuple(body["input_ids"]), str(body["rid"])
        text = self.language.tokenizer.decode(list(shown))
        found = self._planned(shown, text)
        if found is None:
            self.surprises.append(f"request {rid} of {len(shown)} tokens, ending in {text[-120:]!r}, was not planned")
            return _refusal(400, "nobody planned this request")
        key, plan = found
        if plan.faults and isinstance(plan.faults[0], int):
            status = plan.faults.pop(0)
            self._plans[key].appendleft(plan)
            if not status:
                http.transport.abort()
            return _refusal(status or 500, "planned failure")
        ids, finish = self._sampled(plan, body.get("sampling_params") or {})
        if plan.hold and not await self._released_before_abort(key, rid):
            plan = replace(plan, hold=False, faults=[("cut", len(ids) // 2)])
        if plan.faults and finish != "length":
            count = min(plan.faults.pop(0)[1], len(ids))
            self._rests[shown + tuple(ids[:count])].append((key, replace(plan, ids=plan.ids[count:])))
            answer = web.json_response(self._answer(key, plan, shown, ids[:count], "abort", rid, text))
            self._version += 1
            return answer
        return web.json_response(self._answer(key, plan, shown, ids, finish, rid, text))

    def _planned(self, shown: tuple[int, ...], text: str) -> tuple[Key, Plan] | None:
        if self._rests.get(shown):
            return self._rests[shown].popleft()
        tags = TAG.findall(text)
        key = (int(tags[-1][0]), int(tags[-1][1])) if tags else (-1, -1)
        return (key, self._plans[key].popleft()) if self._plans.get(key) else None

    def _sampled(self, plan: Plan, params: dict[str, Any]) -> tuple[list[int], str]:
        limit = params.get("max_new_tokens")
        if plan.matched is None or (limit is not None and len(plan.ids) > limit):
            return plan.ids[:limit], "length"
        return plan.ids, "stop"

    async def _released_before_abort(self, key: Key, rid: str) -> bool:
        waiting = _Waiting(rid, key, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        await self._tell()
        try:
            return await waiting.answer
        finally:
            self._waiting.remove(waiting)
            asyncio.ensure_future(self._tell())

    def _answer(
        self, key: Key, plan: Plan, shown: tuple[int, ...], ids: list[int], finish: str, rid: str, text: str
    ) -> dict[str, Any]:
        sent = Answered(key, plan.word, shown, tuple(ids), self._next, finish, str(self._version), text)
        self.answers.append(sent)
        if ids:
            self._firsts.append(sent.first)
            self._by_first[sent.first] = sent
            self._next += len(ids)
        reason = {"type": finish} | ({"matched": plan.matched} if finish == "stop" else {})
        meta = {
            "id": rid,
            "finish_reason": reason,
            "prompt_tokens": len(shown),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": sent.version,
            "e2e_latency": 0.0,
            "output_token_logprobs": [[lp, i, None] for lp, i in zip(sent.logprobs(), ids, strict=True)],
        }
        return {"text": self.language.tokenizer.decode(ids), "output_ids": list(ids), "meta_info": meta}

    async def _abort(self, http: web.Request) -> web.Response:
        body = await http.json()
        for waiting in self._waiting:
            if (body.get("abort_all") or waiting.rid.startswith(str(body.get("rid")))) and not waiting.answer.done():
                waiting.answer.set_result(False)
        return web.json_response({})

    async def _fine(self, http: web.Request) -> web.Response:
        return web.json_response({})


def _json(fact: Any) -> Any:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(fact())

    return handler


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)

"""Random agents on a random engine, over HTTP: the ledger contains exactly the engine's prompts and answers."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.audit import audit
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import GatewayConfig
from slime_agl.engine.retry import Backoff
from slime_agl.engine.router import RouterEngine
from slime_agl.execution import Execution
from slime_agl.executor.samples import SampleBuilder
from slime_agl.gateway.http.server import Gateway, GatewayParts
from slime_agl.gateway.sessions import calls
from slime_agl.gateway.sessions.session import SealedSession, SessionSpec
from slime_agl.host import RolloutArgs, Sample, default_args
from slime_agl.testing.answers import Answer
from slime_agl.testing.replay import FakeReplay
from slime_agl.testing.sglang import FakeSGLang
from slime_agl.testing.tokenizer import tiny_tokenizer, tool_call_text
from slime_agl.trace.invariants import Seen, check_against
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import account, segments

EXAMPLES = int(os.environ.get("GATEWAY_EXAMPLES", "40"))
TOKENIZER = tiny_tokenizer()
ADDED = sorted(TOKENIZER.added_tokens_decoder)
END, OTHER_END, OPENER = TOKENIZER.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>", "<|im_start|>"])
MARK = "zq"
REPLAY = FakeReplay()
REPLAYED = {
    "use_rollout_routing_replay": True,
    "num_layers": REPLAY.layers,
    "moe_router_topk": REPLAY.choices,
    "rollout_top_p": 0.9,
    "rollout_max_response_len": 512,
}
ARGS = RolloutArgs.read(default_args(**REPLAYED))
TOOLS: list[Any] = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
MORE_TOOLS: list[Any] = [*TOOLS, {"type": "function", "function": {"name": "sub", "parameters": {"type": "object"}}}]


class Spied(Renderer):
    """A renderer that remembers what it encoded."""

    encoded: tuple[str, ...] = ()

    def encode(self, text: str) -> list[int]:
        self.encoded = (*self.encoded, text)
        return super().encode(text)


class Nobody:
    def turn_committed(self, *_: Any) -> None:
        pass

    def rewarded(self, *_: Any) -> None:
        pass


# What the engine says


@dataclass(frozen=True)
class Said:
    """A model's answer: what it says, where its text is cut before encoding, what stands in the cuts, how it ends."""

    what: str
    cuts: tuple[int, ...]
    strays: tuple[int, ...]
    end: str

    def answer(self, word: str) -> Answer:
        text = WORDING[self.what](word)
        places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in self.cuts)})
        ids: list[int] = []
        for number, (begin, stop) in enumerate(zip(places, places[1:], strict=False)):
            ids += TOKENIZER.encode(text[begin:stop], add_special_tokens=False)
            ids += self.strays[number : number + 1]
        last = {"end": END, "other_end": OTHER_END, "opener": OPENER, "word": ids[-1] if ids else END}.get(self.end)
        ids += [last] * (last is not None)
        finish = "length" if self.end == "length" else "stop"
        return Answer(ids=ids, finish=finish, matched=last)


WORDING: dict[str, Callable[[str], str]] = {
    "text": lambda word: f"{word} is it, Grüße 世界.\n\n",
    "think": lambda word: f"<think>\nis it {word}?\n</think>\n\n {word} the hello",
    "thinks_on": lambda word: f"<think>\nis it {word}? the",
    "call": lambda word: tool_call_text("add", {"b": word, "a": [1, {"é": None}]}),
    "calls": lambda word: f"{word}\n" + "\n".join(tool_call_text("add", {"b": word, "a": n}) for n in (1, 2.5)),
    "think_call": lambda word: f"<think>\n{word}\n</think>\n\n" + tool_call_text("sub", {"b": word}),
    "cut_call": lambda word: f'{word} <tool_call>\n{{"name": "add", "arguments": {{"b": "{word}',
    "bad_call": lambda word: f"<tool_call>\nadd({word})\n</tool_call>",
    "odd_call": lambda word: f'<tool_call>\n{{"name": "\\ud800", "arguments": {{"b": "{word}"}}}}\n</tool_call>',
    "nothing": lambda word: "",
}
VISIBLE = ("text", "think", "call", "calls", "think_call")
ENDS = ("end", "end", "end", "none", "length", "other_end", "opener", "word")

saids = st.builds(
    Said,
    what=st.sampled_from([*VISIBLE, *WORDING]),
    cuts=st.lists(st.integers(0, 60), max_size=6).map(tuple),
    strays=st.lists(st.sampled_from(ADDED), max_size=2).map(tuple) | st.just(()),
    end=st.sampled_from(ENDS),
)


# What the agent does


@dataclass(frozen=True)
class Step:
    """One thing an agent does. pick: with which of its turns. sloppy: how it echoes, one bit a habit."""

    do: str
    pick: int
    said: Said
    sloppy: int
    cut: int
    options: dict[str, Any]


steps = st.builds(
    Step,
    do=st.sampled_from(
        ["go"] * 10
        + ["again", "unanswered", "root", "same", "retry", "n", "gone", "gone_retry", "abort", "abort"]
        + ["many", "edit", "edit", "system", "tools", "down", "refused", "fails_between", "fails_once"]
    ),
    pick=st.sampled_from([0, 0, 0, 1, 2, 5, 9]),
    said=saids,
    sloppy=st.integers(0, 127) | st.just(0),
    cut=st.integers(0, 12),
    options=st.sampled_from([{}, {}, {}, {"stream": True}, {"max_tokens": 7}, {"stop": ["is"]}, {"logprobs": True}]),
)


@dataclass
class Held:
    """A turn as the agent knows it. vague: what it says does not tell it from its siblings."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    reply: dict[str, Any]
    turn_id: str
    choice: int
    vague: bool


@dataclass
class Expected:
    """What the ledger must say of a turn: that it continues one, or that it starts anew."""

    turn_id: str
    parent: Held | None


@dataclass
class Agent:
    """An attempt's agent, its engine and its gateway."""

    fake: FakeSGLang
    gateway: Gateway
    renderer: Spied
    http: aiohttp.ClientSession
    turns: list[Held] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    last: tuple[dict[str, Any], str] | None = None
    words: int = 0

    async def do(self, step: Step) -> None:
        self.renderer.encoded = ()
        await getattr(self, f"_{step.do}")(step)

    # the plain ways to go on

    async def _go(self, step: Step) -> None:
        await self._continue(step, self._pick(step))

    async def _again(self, step: Step) -> None:
        held = self._pick(step)
        await self._continue(step, held, [] if held and not held.reply.get("tool_calls") else None)

    async def _unanswered(self, step: Step) -> None:
        await self._continue(step, self._pick(step), [self._user()])

    async def _n(self, step: Step) -> None:
        await self._continue(step, self._pick(step), n=3)

    async def _many(self, step: Step) -> None:
        await asyncio.gather(*(self._continue(step, self._pick(step, more)) for more in range(4)))

    async def _abort(self, step: Step) -> None:
        """A weight update in the middle of a turn."""
        self.fake.abort_partial(step.cut).hold()
        arrived = len(self.fake.requests)
        going = asyncio.ensure_future(self._continue(step, self._pick(step)))
        self.fake.weight_version += "1"
        await self._abort_all(arrived)
        self.fake.release()
        await going

    async def _continue(self, step: Step, held: Held | None, new: list[Any] | None = None, n: int = 1) -> None:
        if held is None:
            await self._root(step)
            return
        new = self._next(held) if new is None else new
        messages = [*held.messages, held.reply, *new]
        answer = await self._ask(step, messages, held.tools, n=n)
        self._heard(step, answer, messages, held.tools, held)
        assert MARK not in "".join(self.renderer.encoded), "a continuation encoded what was sampled"

    # new segments

    async def _root(self, step: Step) -> None:
        tools = [TOOLS, TOOLS, None][step.pick % 3]
        messages = [{"role": "system", "content": f"You are agent {step.pick}."}, self._user()]
        self._heard(step, await self._ask(step, messages, tools), messages, tools, None)

    async def _edit(self, step: Step) -> None:
        """An assistant message of the past says something else."""
        if (held := self._pick(step)) is None:
            return
        messages = copy.deepcopy([*held.messages, held.reply, *self._next(held)])
        spoken = [message for message in messages if message["role"] == "assistant"]
        spoken[step.cut % len(spoken)]["content"] = f"I never said that {self.words}."
        self._heard(step, await self._ask(step, messages, held.tools), messages, held.tools, None)

    async def _system(self, step: Step) -> None:
        if (held := self._pick(step)) is None:
            return
        system = {"role": "system", "content": f"Changed {self.words}."}
        messages = [system, *held.messages[1:], held.reply, *self._next(held)]
        self._heard(step, await self._ask(step, messages, held.tools), messages, held.tools, None)

    async def _tools(self, step: Step) -> None:
        if (held := self._pick(step)) is None:
            return
        tools = TOOLS if held.tools != TOOLS else MORE_TOOLS
        messages = [*held.messages, held.reply, *self._next(held)]
        self._heard(step, await self._ask(step, messages, tools), messages, tools, None)

    # the same request once more

    async def _same(self, step: Step) -> None:
        """Without a mark it is a call of its own."""
        if self.last is not None:
            before = len(self.fake.requests)
            for _ in range(self.last[0].get("n", 1)):
                self.fake.say_next(step.said, self._word())
            answer = await self._post(self.last[0])
            assert answer["id"] != self.last[1] and len(self.fake.requests) > before
            self.last = self.last[0], answer["id"]

    async def _retry(self, step: Step) -> None:
        if self.last is not None:
            before = len(self.fake.requests)
            answer = await self._post(self.last[0], retry=True)
            assert len(self.fake.requests) == before, "a retry was sampled again"
            assert answer["id"] == self.last[1]

    async def _gone(self, step: Step) -> None:
        """The client leaves for good."""
        await self._leave(step, 0.0)
        await asyncio.to_thread(self.fake.wait_until_idle)
        self.fake.release()

    async def _gone_retry(self, step: Step) -> None:
        body = await self._leave(step, 1000.0)
        again = asyncio.ensure_future(self._post(body, retry=bool(step.cut % 2)))
        self.fake.release()
        self.last = body, (await again)["id"]

    async def _leave(self, step: Step, grace: float) -> dict[str, Any]:
        calls.GRACE_SECONDS = grace
        body = self._body(step, [self._user()], TOOLS)
        self.fake.abort_partial(step.cut).hold().say_next(step.said, self._word())
        arrived = len(self.fake.requests)
        going = asyncio.ensure_future(self._post(body))
        await self.fake.requests_arrived(arrived + 1)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        return body

    # engines that fail

    async def _fails_once(self, step: Step) -> None:
        self.fake.fail_next([500, 503, 0][step.cut % 3])
        await self._go(step)

    async def _down(self, step: Step) -> None:
        self.fake.fail_next(503, times=3)
        await self._post(self._body(step, [self._user()], None), status=502)

    async def _refused(self, step: Step) -> None:
        self.fake.fail_next(400, "no")
        await self._post(self._body(step, [self._user()], None), status=400)

    async def _fails_between(self, step: Step) -> None:
        """The engine dies after it has answered half a turn."""
        self.fake.abort_partial(step.cut).hold().say_next(step.said, self._word())
        arrived = len(self.fake.requests)
        going = asyncio.ensure_future(self._post(self._body(step, [self._user()], TOOLS), status=None))
        await self.fake.requests_arrived(arrived + 1)
        self.fake.fail_next(500, times=3)
        await self._abort_all(arrived)
        self.fake.release()
        await going
        self.fake.no_more_faults()

    # how it is done

    async def _abort_all(self, arrived: int) -> None:
        await self.fake.requests_arrived(arrived + 1)
        async with self.http.post(f"{self.fake.url}/abort_request", json={"abort_all": True}) as response:
            await response.read()

    def _pick(self, step: Step, more: int = 0) -> Held | None:
        return self.turns[-1 - (step.pick + more) % len(self.turns)] if self.turns else None

    def _word(self) -> str:
        self.words += 1
        return f"{MARK}{self.words}{MARK}"

    def _user(self) -> dict[str, Any]:
        self.words += 1
        return {"role": "user", "content": f"hello <think> <|im_end|> {self.words}"}

    def _next(self, held: Held) -> list[dict[str, Any]]:
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"result {self.words}"}
            for call in held.reply.get("tool_calls") or ()
        ]
        return results or [self._user()]

    def _body(self, step: Step, messages: list[Any], tools: Any, **more: Any) -> dict[str, Any]:
        body = {
            "model": "m",
            "messages": [echoed(message, step.sloppy) for message in messages],
            **step.options,
            **more,
        }
        return body | ({"tools": tools} if tools else {})

    async def _ask(self, step: Step, messages: list[Any], tools: Any, n: int = 1) -> dict[str, Any]:
        for _ in range(n):
            self.fake.say_next(step.said, self._word())
        body = self._body(step, messages, tools, **({"n": n} if n > 1 else {}))
        answer = await self._post(body)
        self.last = body, answer["id"]
        return answer

    async def _post(self, body: dict[str, Any], *, retry: bool = False, status: int | None = 200) -> dict[str, Any]:
        headers = {"x-stainless-retry-count": "1"} if retry else {}
        url = f"{self.gateway.url}/rollout/ro/attempt/at/v1/chat/completions"
        async with self.http.post(url, json=body, headers=headers) as response:
            raw = await response.read()
        assert status in (None, response.status), raw
        return unstreamed(raw) if raw.startswith(b"data:") else json.loads(raw)

    def _heard(self, step: Step, answer: dict[str, Any], messages: list[Any], tools: Any, parent: Held | None) -> None:
        vague = step.said.what not in VISIBLE or bool(step.said.strays) or bool(step.options.get("max_tokens"))
        vague = vague or "stop" in step.options
        for choice in answer["choices"]:
            self.turns.append(Held(messages, tools, choice["message"], answer["id"], choice["index"], vague))
        self.expected.append(Expected(answer["id"], parent))


def echoed(message: dict[str, Any], sloppy: int) -> dict[str, Any]:
    """The message as a careless agent sends it back."""
    message = copy.deepcopy(message)
    if message["role"] == "user":
        parts = [{"type": "text", "text": message["content"], "cache_control": None}]
        return {**message, "content": parts} if sloppy & 1 else message
    if message["role"] != "assistant":
        return {**message, "extra": 1} if sloppy & 2 else message
    text = message.get("content") or ""
    if sloppy & 4:
        message["reasoning_content"] = None
    elif sloppy & 8 and (thought := message.pop("reasoning_content", None)):
        text = f"<think>\n{thought}\n</think>\n\n{text}"
    if sloppy & 16:
        text = " \n" + text.replace(" ", "  ").strip()
    message["content"] = [{"type": "text", "text": text}] if sloppy & 32 else (text or (None if sloppy & 1 else ""))
    for call in message.get("tool_calls") or () if sloppy & 64 else ():
        arguments = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(dict(reversed(arguments.items())), indent=1)
        call["index"] = 0
    return message | ({"refusal": None, "annotations": []} if sloppy & 2 else {})


def unstreamed(raw: bytes) -> dict[str, Any]:
    """A stream's events put together as one body."""
    messages: dict[int, dict[str, Any]] = {}
    events = [json.loads(line[6:]) for line in raw.split(b"\n\n") if line and line != b"data: [DONE]"]
    for event in events:
        for choice in event["choices"]:
            message = messages.setdefault(choice["index"], {"role": "assistant", "content": ""})
            message |= choice["delta"]
            for call in message.get("tool_calls", ()):
                call.pop("index", None)
    choices = [{"index": index, "message": message} for index, message in messages.items()]
    return {"id": events[0]["id"], "choices": choices}


# What must hold


class Engine(FakeSGLang):
    def say_next(self, said: Said, word: str) -> None:
        answer = said.answer(word)
        self.say(ids=answer.ids, finish=answer.finish, matched=answer.matched)

    def no_more_faults(self) -> None:
        self._faults.clear()
        self._script.clear()


def check(agent: Agent, left: SealedSession) -> None:
    assert left.broken is None
    ledger = left.ledger
    _check_turns(agent.fake, ledger)
    parts = segments(ledger)
    told = account(ledger, parts)
    assert told.trained + told.untrained.total() == sum(len(sent.ids) for sent in agent.fake.answers)
    seen = [Seen(sent.request.input_ids, sent.ids, sent.logprobs) for sent in agent.fake.answers]
    samples = SampleBuilder(ARGS, agent.renderer).build(Sample(), execution(left), 0)
    assert check_against(seen, samples) == told.trained == sum(sum(sample.loss_mask) for sample in samples)
    _check_parents(agent, ledger)
    assert [fault for sample in samples for fault in REPLAY.faults(sample)] == []
    _check_cost(agent.fake, ledger)


def _check_turns(fake: FakeSGLang, ledger: Ledger) -> None:
    """Each part of a turn is one answer of the engine, and each answer with tokens is one part."""
    answers = Counter((sent.request.input_ids, sent.ids, sent.logprobs) for sent in fake.answers if sent.ids)
    for turn in ledger.turns:
        shown = (() if turn.parent is None else tuple(ledger.ids(turn.parent))) + tuple(turn.new_ids)
        for part in turn.parts:
            if len(part.ids):
                answers[shown, tuple(part.ids), tuple(part.logprobs)] -= 1
            shown += tuple(part.ids)
        assert tuple(ledger.ids(turn.index)) == shown
    assert not any(answers.values()), "the ledger and the engine tell different stories"


def _check_cost(fake: FakeSGLang, ledger: Ledger) -> None:
    """The engine sent routed experts for the tokens that are new in a turn, and for no others."""
    sent = sum(
        len(answer.request.input_ids) + len(answer.ids) - 1 - answer.request.json["routed_experts_start_len"]
        for answer in fake.answers
        if answer.ids
    )
    assert sent == sum(ledger.covered(turn.index) - ledger.covered(turn.parent) for turn in ledger.turns)


def _check_parents(agent: Agent, ledger: Ledger) -> None:
    index = {turn.turn_id: turn.index for turn in ledger.turns}
    for expected in agent.expected:
        turn = ledger.turns[index[expected.turn_id]]
        if expected.parent is None:
            assert turn.parent is None
            assert turn.fork or all(earlier.untrained for earlier in ledger.turns[: turn.index])
            continue
        assert turn.fork in ("", "branch"), turn.fork
        assert turn.parent is not None
        if not expected.parent.vague:
            assert turn.parent == index[expected.parent.turn_id] + expected.parent.choice


def execution(left: SealedSession) -> Execution:
    parts = segments(left.ledger)
    return Execution(
        rollout_id="ro",
        attempt_id="at",
        task=None,
        reward=None,
        final_text="",
        messages=[],
        spans=(),
        failure="",
        error="",
        ledger=left.ledger,
        segments=parts,
        account=account(left.ledger, parts),
        counters=left.counters,
        seconds=0.0,
    )


@contextmanager
def bench(**options: Any) -> Iterator[tuple[Engine, Gateway, Spied]]:
    with ExitStack() as stack:
        fake = stack.enter_context(Engine(TOKENIZER, replay=REPLAY, **options))
        renderer = Spied(TOKENIZER)
        engine = RouterEngine(fake.url, max_retries=2, backoff=Backoff(0.0, 1.0, 0.0))
        parts = GatewayParts(
            engine=engine,
            renderer=renderer,
            delta=DeltaEncoder(renderer, PLAN),
            parser=ReplyParser(renderer),
            sink=Nobody(),
            model="policy",
            policy="trainer",
        )
        gateway = Gateway(GatewayConfig(), parts)
        gateway.start()
        stack.callback(gateway.stop)
        yield fake, gateway, renderer


PLAN = audit(Renderer(TOKENIZER))


async def live(program: list[Step], last: Step) -> None:
    with bench() as (fake, gateway, renderer):
        sampling = ARGS.sampling_params()
        await gateway.open(
            SessionSpec(
                rollout_id="ro",
                attempt_id="at",
                session_key="key",
                sampling=sampling,
                response_limit=512,
                experts_width=ARGS.experts_width,
            )
        )
        async with aiohttp.ClientSession() as http:
            agent = Agent(fake, gateway, renderer, http)
            for step in program:
                calls.GRACE_SECONDS = 1000.0
                await agent.do(step)
            left = await _end(agent, last)
            check(agent, left)
        await asyncio.to_thread(gateway.stop)


async def _end(agent: Agent, last: Step) -> SealedSession:
    """Seal, now and then with a call in flight."""
    if last.pick:
        return await agent.gateway.seal("ro", "at")
    agent.fake.abort_partial(last.cut).hold().say_next(last.said, agent._word())
    arrived = len(agent.fake.requests)
    going = asyncio.ensure_future(agent._post(agent._body(last, [agent._user()], TOOLS), status=409))
    await agent.fake.requests_arrived(arrived + 1)
    left = await agent.gateway.seal("ro", "at")
    await going
    assert agent.fake.in_flight == 0
    return left


def test_the_ledger_is_what_the_engine_saw_whatever_agents_do(monkeypatch):
    monkeypatch.setattr("slime_agl.gateway.turn.sampling.FIRST_PAUSE", 0.0)
    monkeypatch.setattr(calls, "GRACE_SECONDS", 1000.0)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=EXAMPLES < 100,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(program=st.lists(steps, min_size=1, max_size=25), last=steps)
    def run(program: list[Step], last: Step) -> None:
        asyncio.run(live(program, last))

    run()

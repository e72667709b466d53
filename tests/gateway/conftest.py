"""A gateway on a scripted engine, and attempts to talk to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
import pytest_asyncio

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.audit import audit
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import GatewayConfig
from slime_agl.config.train import TrainConfig
from slime_agl.engine.router import RouterEngine
from slime_agl.execution import Execution
from slime_agl.executor.samples import SampleBuilder
from slime_agl.gateway.http.server import Gateway, GatewayParts
from slime_agl.gateway.sessions.session import SealedSession, SessionSpec
from slime_agl.gateway.turn.selection import Selection
from slime_agl.host import RolloutArgs, Sample, default_args
from slime_agl.testing.tokenizer import tiny_tokenizer, tool_call_text
from slime_agl.trace.invariants import Seen, check_against
from slime_agl.trace.ledger import Ledger
from slime_agl.trace.segments import account, segments
from slime_agl.trace.turn import Turn


@dataclass
class Notes:
    """A sink that records its calls."""

    turns: list[tuple[str, str, Turn]] = field(default_factory=list)

    def turn_committed(self, rollout_id: str, attempt_id: str, turn: Turn, ledger: Ledger) -> None:
        assert ledger.turns[turn.index] is turn
        self.turns.append((rollout_id, attempt_id, turn))


PLAN = audit(Renderer(tiny_tokenizer()))


@dataclass(frozen=True)
class Proof:
    """An attempt's results, after its Samples proved to be the engine's own tokens."""

    left: SealedSession
    segments: int
    turns: int
    trained: int
    sampled: int

    @property
    def forks(self) -> list[str]:
        return [turn.fork for turn in self.left.ledger.turns if turn.fork]

    def one_segment(self, turns: int) -> bool:
        """All turns are one sequence in which every sampled token trains."""
        return (self.segments, self.turns, self.forks, self.trained) == (1, turns, [], self.sampled)


def oddly(text: str, tokenizer: Any) -> list[int]:
    """Ids of an answer sampled one character per token: no tokenizer encodes it so, which exposes re-encoding."""
    pieces = re.split(r"(</?(?:tool_call|think)>)", text)
    ids: list[int] = []
    for piece in pieces:
        for part in [piece] if piece.startswith("<") else piece:
            ids += tokenizer.encode(part, add_special_tokens=False)
    return [*ids, tokenizer.eos_token_id]


class Bench:
    """A started gateway; attempts are opened on it by name."""

    def __init__(self, gateway: Gateway, notes: Notes) -> None:
        self.gateway, self.notes = gateway, notes
        self.keys: dict[str, str] = {}
        self.clients: list[openai.AsyncOpenAI] = []

    async def open(self, name: str = "at-1", **spec: Any) -> openai.AsyncOpenAI:
        given = {"sampling": {"temperature": 1.0}, "response_limit": 512, **spec}
        self.keys[name] = await self.gateway.open(
            SessionSpec(rollout_id="ro-1", attempt_id=name, session_key=f"session-{name}", **given)
        )
        return self.client(name)

    def client(self, name: str = "at-1", key: str | None = None, **options: Any) -> openai.AsyncOpenAI:
        options = {"max_retries": 0, **options}
        self.clients.append(openai.AsyncOpenAI(base_url=self.url(name), api_key=key or self.keys[name], **options))
        return self.clients[-1]

    def url(self, name: str = "at-1") -> str:
        return f"{self.gateway.url}/rollout/ro-1/attempt/{name}/v1"

    async def joined(self, count: int, retry: asyncio.Future[Any]) -> None:
        """Return when `count` retries have joined a call. Raises what `retry` raised, when it was answered before."""
        session = self.gateway._sessions._open[("ro-1", "at-1")]
        while session.counters["joined_retries"] < count:
            if retry.done():
                raise AssertionError(f"the retry was a call of its own: {retry.result()}")
            await asyncio.sleep(0)

    async def seal(self, name: str = "at-1") -> SealedSession:
        return await self.gateway.seal("ro-1", name)

    async def prove(self, fake: Any, name: str = "at-1") -> Proof:
        """End the attempt and compare its Samples with the engine's record."""
        left = await self.seal(name)
        parts = segments(left.ledger)
        execution = Execution(
            rollout_id="ro-1",
            attempt_id=name,
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
        builder = SampleBuilder(RolloutArgs.read(default_args()), self.gateway._parts.renderer)
        samples = builder.build(Sample(), execution, 0)
        trained = check_against([Seen(s.request.input_ids, s.ids, s.logprobs) for s in fake.answers], samples)
        return Proof(left, len(samples), len(left.ledger.turns), trained, sum(len(sent.ids) for sent in fake.answers))


@pytest_asyncio.fixture
async def make_bench(fake_sglang: Any) -> AsyncIterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(
        policy: str = "trainer",
        history: str = "append",
        url: str = "",
        template: str = "",
        train: TrainConfig | None = None,
        **config: Any,
    ) -> Bench:
        renderer = Renderer(fake_sglang.tokenizer, chat_template=template or None)
        notes = Notes()
        parts = GatewayParts(
            engine=RouterEngine(url or fake_sglang.url),
            renderer=renderer,
            delta=DeltaEncoder(renderer, audit(renderer) if template else PLAN, history=history),
            parser=ReplyParser(renderer),
            sink=notes,
            model="policy",
            policy=policy,
            selection=Selection.of(train or TrainConfig()),
        )
        gateway = Gateway(GatewayConfig(**config), parts)
        gateway.start()
        benches.append(Bench(gateway, notes))
        return benches[-1]

    yield make
    for bench in benches:
        for client in bench.clients:
            await client.close()
        await asyncio.to_thread(bench.gateway.stop)


@pytest.fixture
def script(fake_sglang: Any) -> Callable[..., None]:
    """Script answers: a text is said, a list of (name, arguments) is called; all of it sampled oddly."""

    def write(*answers: str | list[tuple[str, Any]]) -> None:
        for answer in answers:
            text = answer if isinstance(answer, str) else "\n".join(tool_call_text(*call) for call in answer)
            fake_sglang.say(ids=oddly(text, fake_sglang.tokenizer))

    return write


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()

"""A random agent: its calls to its endpoint, and its memory of them for the checker."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.oracle.dialects import Anthropic, Ask, Chat, Ids, Responses, Said, Texts
from tests.oracle.engine import Key, OracleEngine
from tests.oracle.sayings import KINDS, TAG, WORD, Plan, saying, tag, word

TEXT_KINDS = tuple(kind for kind in KINDS if "call" not in kind)
LATER = 9  # numbers the tag of a system message; results of calls have lower ones
MOST_FAILURES = 3  # the engine client's tries
OPERATIONS = {
    "go": 14,
    "root": 2,
    "branch": 3,
    "edit": 2,
    "system": 1,
    "tools": 1,
    "compact": 1,
    "several": 2,
    "many": 2,
    "cut": 4,
    "fails_once": 2,
    "down": 1,
    "down_midway": 1,
    "refused": 1,
    "retry": 2,
    "joins": 1,
    "same": 1,
    "leaves": 1,
}


@dataclass(frozen=True, slots=True)
class Door:
    """An agent's endpoint. grace: a client may return after a disconnect."""

    http: aiohttp.ClientSession
    url: str
    key: str
    grace: bool


@dataclass(slots=True)
class Held:
    """A reply and the conversation up to it. word: the engine's word, '' if the reply does not reveal it."""

    dialect: Any
    items: list[Any]
    said: Said
    tools: tuple[str, ...]
    word: str
    plain: bool


@dataclass(slots=True)
class Made:
    """A call the agent made. tags: those in its messages, in order. exact: the prompt, where the agent wrote it itself.

    parent: the word of the reply it continues, '' for a new conversation. plain: that reply is unmodified.
    status: the gateway's status, None if the agent did not wait. tries: retries so far. heard: the replies' words.
    """

    key: Key
    does: str
    dialect: Any
    ask: Ask
    tags: list[str]
    plans: list[Plan]
    parent: str = ""
    plain: bool = False
    exact: Any = None
    status: int | None = None
    tries: int = 0
    heard: list[str] = field(default_factory=list)


class Program:
    """number: appears in everything the agent says. faults: errors seen on the agent's side."""

    def __init__(self, number: int, rng: random.Random, engine: OracleEngine, door: Door, language: Any) -> None:
        self.number, self._rng, self._engine, self._door, self._language = number, rng, engine, door, language
        self.made: list[Made] = []
        self.faults: list[str] = []
        self._turns: list[Held] = []
        self._dialects = [
            Chat(),
            Chat(),
            Chat(),
            Responses(),
            Responses(),
            Anthropic(),
            Texts(),
            Ids(language.tokenizer),
        ]
        self._calls = self._words = 0
        self._last: tuple[Made, dict[str, Any], dict[str, str], list[str]] | None = None

    async def run(self, steps: int) -> None:
        names, weights = list(OPERATIONS), list(OPERATIONS.values())
        await self._root()
        for _ in range(steps):
            await getattr(self, f"_{self._rng.choices(names, weights)[0]}")()

    async def leave_one_open(self) -> asyncio.Task[Any]:
        """Leave a call at the engine when the attempt ends; its agent must get a 409."""
        made = self._fresh()
        made.plans[0].hold = True
        made.does = "open"
        task = asyncio.ensure_future(self._send(made, expect=(409,)))
        await self._at_engine(made, task)
        return task

    # going on

    async def _root(self) -> None:
        await self._send(self._fresh())

    async def _go(self) -> None:
        await self._send(self._next(self._pick(latest=True)))

    async def _branch(self) -> None:
        await self._send(self._next(self._pick(latest=False)))

    async def _several(self) -> None:
        made = self._next(self._pick(latest=True), n=self._rng.choice((2, 3)))
        await self._send(made)

    async def _many(self) -> None:
        made = [self._next(self._pick(latest=False)) for _ in range(self._rng.choice((2, 3, 4)))]
        await asyncio.gather(*(self._send(one) for one in made))

    # new beginnings

    async def _edit(self) -> None:
        await self._forked("edit", lambda held, made: held.dialect.edited(held.items, f"Never said that {made[1]}."))

    async def _system(self) -> None:
        def changed(held: Held, made: Key) -> list[Any] | None:
            if isinstance(held.dialect, Texts):
                return None
            return [*held.dialect.start(f"Changed {made[1]}.", "x")[:1], *held.items[1:]]

        await self._forked("system", changed)

    async def _compact(self) -> None:
        def compacted(held: Held, made: Key) -> list[Any] | None:
            return held.dialect.start("You are an agent.", f"So far: {self._tag(made)}")

        await self._forked("compact", compacted, results=False)

    async def _tools(self) -> None:
        held = self._pick(latest=True)
        if held is None or isinstance(held.dialect, Texts):
            return
        made = self._next(held)
        tools = ("add", "sub", "mul") if held.tools != ("add", "sub", "mul") else ("add", "sub")
        made.ask = Ask(made.ask.history, made.ask.new, tools, made.ask.stream)
        made.parent = ""
        await self._send(made)

    async def _forked(self, does: str, change: Any, results: bool = True) -> None:
        held = self._pick(latest=False)
        if held is None:
            return
        key = self._key()
        items = change(held, key)
        if items is None:
            self._calls -= 1
            return
        new = self._answers(held, key) if results else []
        ask = Ask(items, new, held.tools, self._rng.random() < 0.3)
        await self._send(self._call(key, does, held.dialect, ask))

    # engines that fail, weights that change

    async def _cut(self) -> None:
        made = self._next(self._pick(latest=True))
        cuts = [("cut", self._rng.randrange(12)) for _ in range(self._rng.choice((1, 1, 2)))]
        made.plans[0].faults = cuts + [503] * (self._rng.random() < 0.2)
        await self._send(made)

    async def _fails_once(self) -> None:
        made = self._next(self._pick(latest=True), n=self._rng.choice((1, 1, 2)))
        made.plans[0].faults = [self._rng.choice((500, 503, 0))]
        await self._send(made)

    async def _down(self) -> None:
        made = self._next(self._pick(latest=True))
        made.plans[0].faults = [503] * MOST_FAILURES
        await self._send(made, expect=(502, 200))

    async def _down_midway(self) -> None:
        """The engine dies after half a turn."""
        made = self._next(self._pick(latest=True))
        made.plans[0].faults = [("cut", 3), *[500] * MOST_FAILURES]
        await self._send(made, expect=(502, 200))

    async def _refused(self) -> None:
        made = self._next(self._pick(latest=True))
        made.plans[0].faults = [400]
        await self._send(made, expect=(400,))

    # the same request once more

    async def _retry(self) -> None:
        """A marked retry gets the answer that was given."""
        if self._last is not None:
            made, body, headers, names = self._last
            status, raw = await self._post(made, body, headers | self._again(made))
            told = [said.id for said in made.dialect.read(raw, made.ask.stream)] if status == 200 else []
            if told != names:
                self._fault(made, f"a marked retry got HTTP {status} and the answers {told}, not {names}")

    async def _joins(self) -> None:
        """The client disconnects and retries while the engine is working."""
        made = self._fresh()
        made.plans[0].hold, made.does = True, "joins"
        body, headers = self._request(made)
        self._note(made)
        first = asyncio.ensure_future(self._post(made, body, headers))
        await self._at_engine(made, first)
        again = asyncio.ensure_future(self._post(made, body, headers | self._again(made)))
        if self._door.grace and self._rng.random() < 0.5:
            first.cancel()
        await self._engine.release(made.key)
        await asyncio.gather(first, return_exceptions=True)
        self._heard(made, *await again, expect=(200,), sent=(body, headers))

    async def _same(self) -> None:
        """The same body without a mark, or with its own key, is another call."""
        if self._last is not None:
            made, body, headers, _ = self._last
            again = Made(made.key, "same", made.dialect, made.ask, made.tags, [], made.parent, made.plain, made.exact)
            again.plans = [self._say(made.dialect) for _ in made.plans]
            headers = {"Idempotency-Key": f"other {self._words}"} if self._rng.random() < 0.5 else {}
            self._note(again)
            self._heard(again, *await self._post(again, body, headers), expect=(200,), sent=(body, headers))

    async def _leaves(self) -> None:
        """The client leaves for good; without grace the engine request is aborted, else it ends with the attempt."""
        if self._door.grace:
            return
        made = self._fresh()
        made.plans[0].hold, made.does = True, "leaves"
        body, headers = self._request(made)
        self._note(made)
        task = asyncio.ensure_future(self._post(made, body, headers))
        await self._at_engine(made, task)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._engine.gone(made.key)

    # how a call is made

    def _fresh(self) -> Made:
        dialect, key = self._rng.choice(self._dialects), self._key()
        tools = self._rng.choice((("add", "sub"), ("add", "sub"), ())) if not isinstance(dialect, Texts) else ()
        items = dialect.start(f"You are agent {self._rng.randrange(3)}.", f"hello <think> 你 {self._tag(key)}")
        items += self._later(dialect, key)
        return self._call(key, "root", dialect, Ask([], items, tools, self._rng.random() < 0.3))

    def _next(self, held: Held | None, n: int = 1) -> Made:
        if held is None:
            return self._fresh()
        key, rng = self._key(), self._rng
        new = self._answers(held, key) + self._later(held.dialect, key)
        items = held.dialect.sloppy(held.items, rng) if rng.random() < 0.3 else held.items
        previous = held.said.id if isinstance(held.dialect, Responses) and rng.random() < 0.4 else ""
        limit = rng.randrange(1, 12) if rng.random() < 0.05 else 4096
        n = n if held.dialect.several else 1
        ask = Ask(items, new, held.tools, rng.random() < 0.3, n, limit, previous)
        made = self._call(key, "go", held.dialect, ask)
        made.parent, made.plain = held.word, held.plain
        return made

    def _call(self, key: Key, does: str, dialect: Any, ask: Ask) -> Made:
        items = ask.history + ask.new
        exact = None
        if isinstance(dialect, Ids):
            exact = tuple(token for item in items for token in item)
        elif isinstance(dialect, Texts):
            exact = "".join(items)
        tags = [] if exact is not None else [m.group() for m in TAG.finditer(json.dumps(items))]
        return Made(key, does, dialect, ask, tags, [self._say(dialect) for _ in range(ask.n)], exact=exact)

    def _say(self, dialect: Any) -> Plan:
        self._words += 1
        kinds = TEXT_KINDS if isinstance(dialect, Texts) else KINDS
        return saying(self._rng, word(self.number, self._words), self._language, kinds)

    def _answers(self, held: Held, key: Key) -> list[Any]:
        """Return what an agent says next: results of all calls, in any order, else a user message."""
        if not held.said.calls:
            return held.dialect.user(f"and {self._tag(key)}?")
        order = list(held.said.calls)
        if self._rng.random() < 0.2:
            self._rng.shuffle(order)
        return held.dialect.results([(name, f"result {self._tag(key, at)}") for at, name in enumerate(order)])

    def _later(self, dialect: Any, key: Key) -> list[Any]:
        """Now and then, a system message after the others."""
        return dialect.later(f"mind {self._tag(key, LATER)}") if self._rng.random() < 0.15 else []

    def _pick(self, *, latest: bool) -> Held | None:
        if not self._turns:
            return None
        return self._turns[-1] if latest else self._rng.choice(self._turns)

    def _key(self) -> Key:
        self._calls += 1
        return self.number, self._calls

    def _tag(self, key: Key, at: int = 0) -> str:
        return tag(*key, at)

    def _request(self, made: Made) -> tuple[dict[str, Any], dict[str, str]]:
        headers = {"Idempotency-Key": f"k{made.key}"} if self._rng.random() < 0.1 else {}
        return made.dialect.body(made.ask) | {"model": "m"}, headers

    def _again(self, made: Made) -> dict[str, str]:
        """Mark the next try of a call as OpenAI's and Anthropic's clients do."""
        made.tries += 1
        return {"x-stainless-retry-count": str(made.tries)}

    async def _at_engine(self, made: Made, task: asyncio.Task[Any]) -> None:
        """Wait until the call reaches the engine, or the gateway has answered it alone."""
        arrived = asyncio.ensure_future(self._engine.arrived(made.key))
        await asyncio.wait((arrived, task), return_when=asyncio.FIRST_COMPLETED)
        if arrived.done():
            arrived.result()
        else:
            arrived.cancel()
            await asyncio.gather(arrived, return_exceptions=True)

    def _note(self, made: Made) -> None:
        self.made.append(made)
        self._engine.plan(made.key, made.plans)

    async def _send(self, made: Made, expect: tuple[int, ...] = (200,)) -> None:
        body, headers = self._request(made)
        self._note(made)
        self._heard(made, *await self._post(made, body, headers), expect=expect, sent=(body, headers))

    async def _post(self, made: Made, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, bytes]:
        url, headers = self._door.url + made.dialect.path, headers | {"Authorization": f"Bearer {self._door.key}"}
        async with self._door.http.post(url, json=body, headers=headers) as response:
            return response.status, await response.read()

    def _heard(
        self,
        made: Made,
        status: int,
        raw: bytes,
        *,
        expect: tuple[int, ...],
        sent: tuple[dict[str, Any], dict[str, str]],
    ) -> None:
        made.status = status
        self._engine.withdraw(made.key)
        if status not in expect and not (status == 400 and b"the chat template refuses" in raw):
            self._fault(made, f"HTTP {status} where {expect} was expected: {raw[:300]!r}")
        if status != 200:
            return
        replies = made.dialect.read(raw, made.ask.stream)
        if len(replies) != len(made.plans):
            self._fault(made, f"{len(replies)} replies came, {len(made.plans)} were asked for")
        plans = {plan.word: plan for plan in made.plans}
        items = made.ask.history + made.ask.new
        for said in replies:
            seen = [found.group() for found in WORD.finditer(said.seen)]
            told = seen[0] if seen else made.plans[0].word if len(made.plans) == 1 else ""
            if told and told not in plans:
                self._fault(made, f"a reply says {told}, the engine was to say one of {sorted(plans)}")
            made.heard.append(told)
            plain = told in plans and plans[told].plain and bool(seen) and made.ask.limit > 100
            self._turns.append(Held(made.dialect, [*items, *said.items], said, made.ask.tools, told, plain))
        self._last = made, *sent, [said.id for said in replies]

    def _fault(self, made: Made, words: str) -> None:
        self.faults.append(f"call {made.key} ({made.does}, {made.dialect.path}): {words}")

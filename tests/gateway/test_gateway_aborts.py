"""A turn interrupted by weight updates equals, token for token, the uninterrupted one: on a real model, over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.audit import audit
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import GatewayConfig
from slime_agl.engine.router import RouterEngine
from slime_agl.errors import EngineError
from slime_agl.execution import Execution
from slime_agl.executor.samples import SampleBuilder
from slime_agl.gateway.http.server import Gateway, GatewayParts
from slime_agl.gateway.sessions.session import SealedSession, SessionSpec
from slime_agl.gateway.turn import sampling
from slime_agl.gateway.turn.stops import Stops
from slime_agl.host import RolloutArgs, Sample, default_args
from slime_agl.local.demo.witness import Witness
from slime_agl.local.engine.backend import Deliver, Finish, Generated, GenerateRequest
from slime_agl.local.engine.server import EngineThread
from slime_agl.local.engine.transformers_backend import TransformersBackend
from slime_agl.testing.tokenizer import tiny_tokenizer
from slime_agl.trace.segments import account, segments
from slime_agl.trace.turn import Sampled

EXAMPLES = int(os.environ.get("ABORT_EXAMPLES", "25"))
TOKENIZER = tiny_tokenizer()
LETTERS = bytes_to_unicode()


class Cutting(Witness):
    """An engine that ends its answers after so many tokens, as an abort would, and each time gets new weights.

    The new weights are the old ones under another version, so that what would have been said stays known.
    """

    cuts: tuple[int, ...] = ()
    version = 0
    versions: tuple[int, ...] = ()  # of each token that was answered, in order

    def submit(self, request: GenerateRequest, deliver: Deliver) -> None:
        cut = self.cuts[self.version] if self.version < len(self.cuts) else None
        version = self.version

        def cut_off(update: Generated | EngineError) -> None:
            if isinstance(update, EngineError):
                deliver(update)
                return
            update = replace(update, weight_version=str(version))
            if cut is not None and cut < len(update.output_ids):
                self.version += 1
                ids, logprobs = update.output_ids[:cut], update.logprobs[:cut]
                update = replace(update, output_ids=ids, logprobs=logprobs, finish=Finish("abort"))
            if update.finish is not None:
                self.versions += (version,) * len(update.output_ids)
            deliver(update)

        super().submit(request, cut_off)


class Nobody:
    def turn_committed(self, *_: Any) -> None:
        pass

    def rewarded(self, *_: Any) -> None:
        pass


@dataclass
class Bench:
    engine: Cutting
    gateway: Gateway
    renderer: Renderer
    count: Iterator[int]

    def run(self, cuts: tuple[int, ...], body: dict[str, Any], **params: Any) -> tuple[str, SealedSession]:
        """One request of an attempt of its own; what it was answered, and what the attempt leaves."""
        self.engine.cuts, self.engine.version, self.engine.versions = cuts, 0, ()
        return asyncio.run(self._run(f"at-{next(self.count)}", body, params))

    async def _run(self, name: str, body: dict[str, Any], params: dict[str, Any]) -> tuple[str, SealedSession]:
        key = await self.gateway.open(
            SessionSpec(rollout_id="ro", attempt_id=name, session_key=name, sampling=params, response_limit=24)
        )
        url = f"{self.gateway.url}/rollout/ro/attempt/{name}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession() as http, http.post(url, json=body, headers=headers) as answer:
            told = await answer.json()
            assert answer.status == 200, told
        return told["choices"][0]["message"]["content"], await self.gateway.seal("ro", name)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    patch = pytest.MonkeyPatch()
    patch.setattr(sampling, "FIRST_PAUSE", 0.0)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=TOKENIZER.eos_token_id,
        pad_token_id=None,
    )
    engine = Cutting(TransformersBackend(LlamaForCausalLM(config).eval(), TOKENIZER))
    with EngineThread(engine) as server:
        renderer = Renderer(TOKENIZER)
        parts = GatewayParts(
            engine=RouterEngine(server.url),
            renderer=renderer,
            delta=DeltaEncoder(renderer, audit(renderer)),
            parser=ReplyParser(renderer),
            sink=Nobody(),
            model="policy",
            policy="trainer",
        )
        gateway = Gateway(GatewayConfig(), parts)
        gateway.start()
        yield Bench(engine, gateway, renderer, itertools.count())
        gateway.stop()
    patch.undo()


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(word="世界", seed=None, max_tokens=5, stop=(0, 6), cuts=(1, 1))
@given(
    word=st.sampled_from(["hello", "the tide", "世界", "a"]),
    seed=st.none() | st.integers(0, 99),
    max_tokens=st.integers(1, 24),
    stop=st.none() | st.tuples(st.integers(0, 30), st.integers(1, 8)),
    cuts=st.lists(st.integers(0, 6), max_size=5).map(tuple) | st.integers(0, 24).map(lambda at: (at,)),
)
def test_a_turn_that_was_cut_anywhere_is_the_turn_that_was_not(
    bench: Bench, word: str, seed: int | None, max_tokens: int, stop: tuple[int, int] | None, cuts: tuple[int, ...]
) -> None:
    greedy = {"temperature": 0.0} if seed is None else {"temperature": 1.0, "sampling_seed": seed}
    params = {**greedy, "no_stop_trim": True, "skip_special_tokens": False}
    body: dict[str, Any] = {"messages": [{"role": "user", "content": word}], "max_tokens": max_tokens}
    if stop is not None:
        text = bench.run((), body, **params)[0]
        at = stop[0] % max(len(text), 1)
        body["stop"] = [text[at : at + stop[1]] or "~", "never said"]
    said, whole = bench.run((), body, **params)
    told, cut = bench.run(cuts, body, **params)
    (one,), (other,) = whole.ledger.turns, cut.ledger.turns
    assert list(other.output_ids()) == list(one.output_ids())
    assert other.output_logprobs() == pytest.approx(one.output_logprobs(), abs=1e-4)
    assert (told, other.finish, other.matched) == (said, one.finish, one.matched)
    assert len(one.parts) == 1
    versions = [int(part.weight_version) for part in other.parts for _ in part.ids]
    assert tuple(versions) == bench.engine.versions, "each token has the version of the weights that sampled it"
    (sample,) = SampleBuilder(RolloutArgs.read(default_args()), bench.renderer).build(Sample(), execution(cut), 0)
    sampled = [part for part in other.parts if len(part.ids)]
    assert sample.weight_versions == [part.weight_version for part in sampled]
    assert sample.response_length == sum(sample.loss_mask) == other.output_length
    assert sample.rollout_log_probs == list(other.output_logprobs())


def execution(left: SealedSession) -> Execution:
    parts = segments(left.ledger)
    return Execution(
        rollout_id="ro",
        attempt_id="at",
        task=None,
        reward=0.0,
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


@pytest.mark.parametrize(
    ("stop", "before", "after", "matched"),
    [
        ("stop here", "please st", "op here", "stop here"),
        ("stop here", "please st", "ay, op here", None),
        ("\n\n", "one\n", "\n", "\n\n"),
        ("aab", "aa", "b", "aab"),
        ("é", b"\xc3", b"\xa9", "é"),
        ("世界", "世".encode() + b"\xe7", b"\x95\x8c", "世界"),
    ],
)
def test_what_is_left_of_a_stop_string_ends_the_turn_only_at_the_cut(
    stop: str, before: str | bytes, after: str | bytes, matched: str | None
) -> None:
    stops = Stops.of({"stop": [stop]}, TOKENIZER.decode)
    parts = [sampled(before)]
    asked = stops.after(parts)
    following = TOKENIZER.decode(list(sampled(after).ids))
    rest = next(text for text in asked if text in following)
    part = stops.settled(parts, structs.replace(sampled(after), finish="stop", matched=rest))
    assert asked[0] == stop
    assert (part.finish, part.matched) == (("stop", matched) if matched else ("abort", None))


def sampled(text: str | bytes) -> Sampled:
    """An aborted answer of single bytes."""
    raw = text.encode() if isinstance(text, str) else text
    ids = TOKENIZER.convert_tokens_to_ids([LETTERS[byte] for byte in raw])
    return Sampled(ids=array("i", ids), logprobs=array("d", [0.0] * len(ids)), finish="abort")

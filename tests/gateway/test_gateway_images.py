"""Images in chat requests: the engine gets them beside expanded placeholders, Samples get the processor's tensors."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from aiohttp import web

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.audit import audit
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.images import Vision
from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import GatewayConfig
from slime_agl.engine.router import RouterEngine
from slime_agl.execution import Execution
from slime_agl.executor.samples import SampleBuilder
from slime_agl.gateway.http.server import Gateway, GatewayParts
from slime_agl.gateway.sessions.session import SessionSpec
from slime_agl.host import RolloutArgs, Sample, default_args
from slime_agl.record.codec import decode_ledger, encode_ledger
from slime_agl.testing import FakeSGLang
from slime_agl.trace.segments import account, segments
from tests.gateway.conftest import Notes
from tests.llava import PATCHES, TEMPLATE, processor

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")

PROCESSOR = processor()
IMAGE_ID = PROCESSOR.tokenizer.convert_tokens_to_ids("<image>")


def png(colour: tuple[int, ...], mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (40, 56), colour).save(buffer, format="PNG")
    return buffer.getvalue()


def data_url(raw: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(raw).decode()


RED, BLUE = data_url(png((255, 0, 0))), data_url(png((0, 0, 255, 128), "RGBA"))


def user(text: str, *urls: str) -> dict[str, Any]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [*images, {"type": "text", "text": text}]}


def pixels(url: str) -> Any:
    raw = base64.b64decode(url.partition(",")[2])
    picture = Image.open(io.BytesIO(raw)).convert("RGB")
    return PROCESSOR.image_processor(images=[picture], return_tensors="pt")["pixel_values"]


def is_the_same_picture(one: str, other: str) -> bool:
    opened = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB") for url in (one, other)]
    return opened[0].tobytes() == opened[1].tobytes()


class Place:
    """A gateway with one open attempt, its client, and the Samples it leaves."""

    def __init__(self, gateway: Gateway, renderer: Renderer, client: openai.AsyncOpenAI) -> None:
        self.gateway, self.renderer, self.client = gateway, renderer, client

    async def ask(self, *messages: Any, **more: Any) -> list[Any]:
        answer = await self.client.chat.completions.create(model="m", messages=list(messages), **more)
        return [*messages, answer.choices[0].message.model_dump(exclude_none=True)]

    async def samples(self) -> list[Any]:
        left = await self.gateway.seal("ro", "at")
        assert decode_ledger(encode_ledger(left.ledger)) == left.ledger
        parts = segments(left.ledger)
        execution = Execution(
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
        source = Sample(multimodal_inputs={"images": ["what the row held"]})
        return SampleBuilder(RolloutArgs.read(default_args()), self.renderer).build(source, execution, 0)


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Callable[..., Any]]:
    opened: list[Place] = []

    async def make(fake: FakeSGLang, load: Callable[[], Any] = lambda: PROCESSOR) -> Place:
        renderer = Renderer(PROCESSOR.tokenizer, chat_template=TEMPLATE, vision=Vision(load))
        parts = GatewayParts(
            engine=RouterEngine(fake.url),
            renderer=renderer,
            delta=DeltaEncoder(renderer, audit(renderer)),
            parser=ReplyParser(renderer),
            sink=Notes(),
            model="m",
            policy="trainer",
        )
        gateway = Gateway(GatewayConfig(), parts)
        gateway.start()
        key = await gateway.open(
            SessionSpec(
                rollout_id="ro", attempt_id="at", session_key="s", sampling={"temperature": 1.0}, response_limit=64
            )
        )
        url = f"{gateway.url}/rollout/ro/attempt/at/v1"
        opened.append(Place(gateway, renderer, openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)))
        return opened[-1]

    yield make
    for each in opened:
        await each.client.close()
        await asyncio.to_thread(each.gateway.stop)


async def test_images_of_several_turns_reach_engine_and_sample(fake_sglang, place, token_exact):
    fake_sglang.say("a red thing").say("two things").say("the first was red")
    here = await place(fake_sglang)
    first = await here.ask(user("what is it?", RED))
    second = await here.ask(*first, user("and these?", BLUE, RED))
    await here.ask(*second, user("and the first?"))
    one, two, three = fake_sglang.requests
    shown = PROCESSOR.tokenizer.decode(one.input_ids)
    assert shown == "<|im_start|>user\n" + "<image>" * PATCHES + "what is it?<|im_end|>\n<|im_start|>assistant\n"
    assert [list(request.input_ids).count(IMAGE_ID) for request in (one, two, three)] == [4, 12, 12]
    assert [len(request.json["image_data"]) for request in (one, two, three)] == [1, 3, 3]
    for sent, given in zip(two.json["image_data"], (RED, BLUE, RED), strict=True):
        assert is_the_same_picture(sent, given)
    assert two.json["image_data"] == three.json["image_data"]
    for before, after, said in zip((one, two), (two, three), fake_sglang.answers, strict=False):
        held = before.input_ids + said.ids
        assert after.input_ids[: len(held)] == held

    (sample,) = await here.samples()
    token_exact(fake_sglang, [sample])
    assert sample.tokens.count(IMAGE_ID) == 12
    assert torch.equal(sample.multimodal_train_inputs["pixel_values"], torch.cat([pixels(u) for u in (RED, BLUE, RED)]))
    assert [image.size for image in sample.multimodal_inputs["images"]] == [(40, 56)] * 3
    assert set(sample.multimodal_train_inputs) == {"pixel_values"}


async def test_each_branch_has_the_images_of_its_own_tokens(fake_sglang, place, token_exact):
    fake_sglang.answer_with(lambda request: "ok")
    here = await place(fake_sglang)
    first = await here.ask(user("look", RED))
    await here.ask(*first, user("left", BLUE))
    await here.ask(*first, user("right"))
    await here.ask(user("no image at all"))
    assert [len(request.json.get("image_data", ())) for request in fake_sglang.requests] == [1, 2, 1, 0]
    left, right, plain = await here.samples()
    token_exact(fake_sglang, [left, right, plain])
    held = [sample.multimodal_train_inputs for sample in (left, right, plain)]
    assert [None if inputs is None else len(inputs["pixel_values"]) for inputs in held] == [2, 1, None]
    assert plain.multimodal_inputs is None, "the row's own images are not among these tokens"


async def test_an_image_is_fetched_once_and_an_abort_keeps_it(fake_sglang, place):
    asked = []

    async def serve(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=png((1, 2, 3))) if request.path == "/here.png" else web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{name}", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        fake_sglang.hold().abort_partial(2).say("it is dark")
        here = await place(fake_sglang)
        call = asyncio.ensure_future(here.ask(user("see", f"{base}/here.png"), n=1))
        await fake_sglang.requests_arrived(1)
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{fake_sglang.url}/abort_request", json={"abort_all": True}),
        ):
            pass
        await fake_sglang.requests_arrived(2)
        fake_sglang.release()
        await call
        first, second = fake_sglang.requests
        assert second.json["image_data"] == first.json["image_data"] and asked == ["/here.png"]
        with pytest.raises(openai.BadRequestError, match=r"gone.png cannot be fetched: HTTP Error 404"):
            await here.ask(user("see", f"{base}/gone.png"))
        gc.collect()  # a connection that was left open warns now
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/etc/passwd", r"messages\[0\]\.content\[0\] is an image at '/etc/passwd'"),
        ("file:///etc/passwd", "give a data:, http:// or https:// URL"),
        ("data:image/png,abc", "must be data:image/...;base64"),
        ("data:image/png;base64,!", "is not base64"),
        ("data:image/png;base64,QUJD", "an image of 3 bytes cannot be decoded"),
    ],
)
async def test_what_is_no_image_is_refused_before_sampling(fake_sglang, place, url: str, words: str):
    here = await place(fake_sglang)
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        await here.ask(user("see", url))
    assert caught.value.param == "messages" and fake_sglang.requests == []


async def test_without_a_processor_images_are_refused_and_text_goes_on(fake_sglang, place):
    fake_sglang.say("hello")
    here = await place(fake_sglang, load=lambda: None)
    with pytest.raises(openai.BadRequestError, match="image processor could not be loaded"):
        await here.ask(user("see", RED))
    await here.ask(user("no image"))
    assert len(fake_sglang.requests) == 1


async def test_a_placeholder_in_a_text_is_refused(fake_sglang, place):
    here = await place(fake_sglang)
    with pytest.raises(
        openai.BadRequestError, match=r"wrote 2 image placeholders \(<image>\) for the 1 images in the messages"
    ):
        await here.ask(user("what does <image> mean?", RED))


async def test_an_engine_that_reads_the_prompt_in_its_own_way_fails_the_turn_not_the_run(fake_sglang, place):
    """SGLang encodes prompts with images anew; where that changes their length, nothing of the answer trains."""
    fake_sglang.say("wrong", meta={"prompt_tokens": 7})
    here = await place(fake_sglang)
    with pytest.raises(openai.BadRequestError, match="with 1 images and read 7"):
        await here.ask(user("see", RED))
    left = await here.gateway.seal("ro", "at")
    assert left.broken is None
    assert account(left.ledger, segments(left.ledger)).untrained == {"engine_error": len(fake_sglang.answers[0].ids)}


async def test_image_data_passes_the_real_router(fake_sglang, place, tmp_path):
    pytest.importorskip("sglang_router", reason="the router's wheel is not installed")
    from slime_agl.local.engine.router import start_router

    fake_sglang.say("red")
    with start_router([fake_sglang.url], policy="manual", log=tmp_path / "router.log") as router:
        here = await place(router)
        await here.ask(user("see", RED))
    assert is_the_same_picture(fake_sglang.requests[0].json["image_data"][0], RED)

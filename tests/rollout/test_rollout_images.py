"""An agent that sends images, from slime's checkpoint to slime's Sample."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import agentlightning as agl
import openai
import pytest

from slime_agl import host
from tests.conftest import flat
from tests.llava import PATCHES, TEMPLATE, processor

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with tokenizer and processor; slime's own loader reads it where slime is installed."""
    made = processor()
    made.tokenizer.chat_template = TEMPLATE
    made.save_pretrained(tmp_path / "checkpoint")
    if host.load_processor.__module__.startswith("slime_agl."):
        monkeypatch.setattr("slime_agl.assemble.load_processor", lambda path, **_: made)
    return tmp_path / "checkpoint"


@agl.rollout
async def looks(task: Any, llm: Any) -> float:
    """Shows an image of the colour it is told, asks on, and says nothing of images when there is none."""
    buffer = io.BytesIO()
    Image.new("RGB", (30, 30), task["prompt"]).save(buffer, format="PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as ai:
        messages: list[Any] = [{"role": "user", "content": [part, {"type": "text", "text": "which colour?"}]}]
        answer = await ai.chat.completions.create(model="m", messages=messages)
        messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "sure?"}]
        await ai.chat.completions.create(model="m", messages=messages)
    return 1.0


def test_an_image_reaches_engine_and_sample(fake_sglang, run_rollout, checkpoint, token_exact):
    fake_sglang.answer_with(lambda request: "a colour")
    output = run_rollout(looks, ["red", "blue"], n_samples=2, hf_checkpoint=str(checkpoint))
    samples = flat(output.samples)
    token_exact(fake_sglang, output.samples)
    assert all(len(request.json["image_data"]) == 1 for request in fake_sglang.requests)
    red, _, blue, _ = (sample.multimodal_train_inputs["pixel_values"] for sample in samples)
    assert red.shape == (1, 3, 28, 28) and not torch.equal(red, blue)
    image_id = processor().tokenizer.convert_tokens_to_ids("<image>")
    assert [sample.tokens.count(image_id) for sample in samples] == [PATCHES] * 4
    assert [sample.multimodal_inputs["images"][0].getpixel((0, 0)) for sample in samples[::2]] == [
        (255, 0, 0),
        (0, 0, 255),
    ]

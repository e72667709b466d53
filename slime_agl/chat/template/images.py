"""Images in messages: found, loaded, shown to the engine, and turned into the ids and tensors of a checkpoint's processor."""

from __future__ import annotations

import base64
import binascii
import io
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from urllib.error import HTTPError

from slime_agl.errors import TemplateError
from slime_agl.lru import LRU
from slime_agl.trace.turn import Media

FETCH_SECONDS = 20.0
LARGEST_IMAGE = 32 * 1024 * 1024
PICTURES_HELD = 64
PROMPT_KEYS = frozenset({"input_ids", "attention_mask"})
# As slime asks: ids as lists, everything of another modality as tensors. Templates have written every special token.
PROCESSOR_OPTIONS: dict[str, Any] = {
    "text_kwargs": {"return_tensors": None, "return_mm_token_type_ids": False, "add_special_tokens": False},
    **{name: {"return_tensors": "pt"} for name in ("audio_kwargs", "images_kwargs", "videos_kwargs")},
}


class Processor(Protocol):
    """A Hugging Face processor: text with placeholders and images to expanded `input_ids` and the model's tensors."""

    def __call__(self, *, text: str, images: Sequence[Any], **options: Any) -> Mapping[str, Any]: ...


def images_of(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """URLs of the images in normalised messages, in the order in which a template shows them."""
    return [
        part["image"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image"
    ]


class Vision:
    """Encodes text with images. Safe to use from many threads; loads what it needs when the first image comes.

    load: returns the checkpoint's processor, or None when there is none. Pictures are kept for the latest URLs,
    so that each is fetched and decoded once while a conversation shows it.
    """

    def __init__(self, load: Callable[[], Processor | None]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._processor: Processor | None = None
        self._pictures: LRU[str, Any] = LRU(PICTURES_HELD)

    def available(self) -> bool:
        """Whether there is a processor; loads it."""
        with self._lock:
            self._processor = self._processor or self._load()
            return self._processor is not None

    def encode(self, text: str, urls: Sequence[str]) -> tuple[list[int], Media]:
        """Ids of rendered text with every placeholder expanded, and what of it training needs.

        Raises:
            TemplateError: there is no processor, an image cannot be had, or the template shows them in another number.
        """
        with self._lock:
            processor = self._ready()
            pictures = [self._picture(url) for url in urls]
            ids = self._processed(processor, text, pictures)["input_ids"][0]
        return [int(token) for token in ids], Media(text, tuple(as_engine_takes(picture) for picture in pictures))

    def train_inputs(self, media: Media) -> dict[str, Any]:
        """The processor's tensors for one turn's images (pixel_values, ...), by name."""
        with self._lock:
            output = self._processed(self._ready(), media.text, self.pictures(media))
        return {name: value for name, value in output.items() if name not in PROMPT_KEYS}

    def pictures(self, media: Media) -> list[Any]:
        """A turn's images, opened."""
        return [_opened(_from_data(url)) for url in media.images]

    def _ready(self) -> Processor:
        if self._processor is None:
            self._processor = self._load()
        if self._processor is None:
            raise TemplateError(
                "a message holds an image, and no image processor of the checkpoint could be loaded; send text only, or "
                "train a checkpoint with a processor where slime and pillow are installed"
            )
        return self._processor

    def _picture(self, url: str) -> Any:
        picture = self._pictures.used(url)
        if picture is None:
            picture = self._pictures[url] = _opened(_from_data(url) if url.startswith("data:") else _fetched(url))
        return picture

    def _processed(self, processor: Processor, text: str, pictures: list[Any]) -> Mapping[str, Any]:
        placeholder = getattr(processor, "image_token", None)
        if isinstance(placeholder, str) and (shown := text.count(placeholder)) != len(pictures):
            raise TemplateError(
                f"the chat template shows {shown} images ({placeholder}) for the {len(pictures)} in the messages; use the "
                "checkpoint's own template, and keep the placeholder out of texts"
            )
        try:
            return processor(text=text, images=pictures, **PROCESSOR_OPTIONS)
        except Exception as error:  # a processor is a checkpoint's own code and may raise anything
            raise TemplateError(
                f"the image processor refuses {len(pictures)} images: {type(error).__name__}: {error}"
            ) from error


def as_engine_takes(picture: Any) -> str:
    """An opened image as slime sends it: a data URL of a PNG without alpha channel."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _opened(raw: bytes) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise TemplateError("a message holds an image; install pillow to train on images") from error
    try:
        return Image.open(io.BytesIO(raw)).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise TemplateError(f"an image of {len(raw)} bytes cannot be read: {error}") from error


def _from_data(url: str) -> bytes:
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise TemplateError(f"an image URL begins with {head[:60]!r}; a data: URL must be data:image/...;base64,...")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise TemplateError(f"an image's data: URL of {len(data)} characters is not base64: {error}") from error


def _fetched(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as response:
            raw = response.read(LARGEST_IMAGE + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it is the answer too, and holds the connection
        raise TemplateError(f"the image at {url[:200]} cannot be fetched: {error}") from error
    if len(raw) > LARGEST_IMAGE:
        raise TemplateError(f"the image at {url[:200]} has more than {LARGEST_IMAGE} bytes, the most that is fetched")
    return raw

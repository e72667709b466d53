"""Images in messages: find and load them, and encode them with the checkpoint's processor."""

from __future__ import annotations

import base64
import binascii
import io
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError

from slime_agl.chat.template.image_files import LARGEST_IMAGE, bounded, from_file
from slime_agl.chat.template.messages import FILE
from slime_agl.errors import TemplateError
from slime_agl.lru import LRU
from slime_agl.trace.turn import Media

if TYPE_CHECKING:
    from PIL.Image import Image

FETCH_SECONDS = 20.0
PICTURES_CACHED = 64
PROMPT_KEYS = frozenset({"input_ids", "attention_mask"})
# As slime calls it: ids as lists, other modalities as tensors. The template has already written all special tokens.
PROCESSOR_OPTIONS: dict[str, dict[str, object]] = {
    "text_kwargs": {"return_tensors": None, "return_mm_token_type_ids": False, "add_special_tokens": False},
    **{name: {"return_tensors": "pt"} for name in ("audio_kwargs", "images_kwargs", "videos_kwargs")},
}


Processed = Mapping[str, Any]
"""A processor's output: `input_ids` as lists, and tensors of any library."""


class Processor(Protocol):
    """A Hugging Face processor: expands the placeholders in a text; returns `input_ids` and the model's tensors."""

    def __call__(self, *, text: str, images: Sequence[Image], **options: object) -> Processed: ...


def images_of(messages: Sequence[Mapping]) -> list[str]:
    """Return the URLs of the images in normalised messages, in order."""
    return [
        part["image"]
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image"
    ]


class Vision:
    """Encodes text with images. Thread-safe.

    load: returns the checkpoint's processor, or None without one; called at the first image. folder: images below it
    may be named by `file://` URLs; None for no such images. Decoded pictures are cached by URL, so that each is fetched
    once per conversation.
    """

    def __init__(self, load: Callable[[], Processor | None], folder: Path | None = None) -> None:
        self._load = load
        self._folder = None if folder is None else folder.absolute()
        self._lock = threading.Lock()
        self._processor: Processor | None = None
        self._pictures: LRU[str, Image] = LRU(PICTURES_CACHED)

    def available(self) -> bool:
        """Load the processor; return False if there is none."""
        with self._lock:
            self._processor = self._processor or self._load()
            return self._processor is not None

    def encode(self, text: str, urls: Sequence[str]) -> tuple[list[int], Media]:
        """Return the ids of rendered text with every placeholder expanded, and the media that training needs.

        Raises:
            TemplateError: there is no processor, an image cannot be loaded, or the numbers of placeholders and images
                differ.
        """
        with self._lock:
            processor = self._ready()
            pictures = [self._picture(url) for url in urls]
            ids = self._processed(processor, text, pictures)["input_ids"][0]
        return [int(token) for token in ids], Media(text, tuple(as_engine_takes(picture) for picture in pictures))

    def train_inputs(self, media: Media) -> dict[str, object]:
        """Return the processor's tensors for one turn's images (pixel_values, ...), by name."""
        with self._lock:
            output = self._processed(self._ready(), media.text, self.pictures(media))
        return {name: value for name, value in output.items() if name not in PROMPT_KEYS}

    def pictures(self, media: Media) -> list[Image]:
        """Decode a turn's images."""
        return [_opened(_from_data(url)) for url in media.images]

    def _ready(self) -> Processor:
        if self._processor is None:
            self._processor = self._load()
        if self._processor is None:
            raise TemplateError(
                "a message contains an image, but the checkpoint's image processor could not be loaded; send text "
                "only, or train a checkpoint that has a processor, with slime and pillow installed"
            )
        return self._processor

    def _picture(self, url: str) -> Image:
        picture = self._pictures.used(url)
        if picture is None:
            picture = self._pictures[url] = _opened(self._read(url))
        return picture

    def _read(self, url: str) -> bytes:
        if url.startswith("data:"):
            return _from_data(url)
        return from_file(url, self._folder) if url.startswith(FILE) else _fetched(url)

    def _processed(self, processor: Processor, text: str, pictures: list[Image]) -> Processed:
        placeholder = getattr(processor, "image_token", None)
        if isinstance(placeholder, str) and (written := text.count(placeholder)) != len(pictures):
            raise TemplateError(
                f"the chat template wrote {written} image placeholders ({placeholder}) for the {len(pictures)} images "
                "in the messages; use the checkpoint's own template, and keep the placeholder out of texts"
            )
        try:
            return processor(text=text, images=pictures, **PROCESSOR_OPTIONS)
        except Exception as error:  # a processor is a checkpoint's own code and may raise anything
            raise TemplateError(
                f"the image processor failed on {len(pictures)} images: {type(error).__name__}: {error}"
            ) from error


def as_engine_takes(picture: Image) -> str:
    """Encode a picture as slime sends it: the data URL of a PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _opened(raw: bytes) -> Image:
    try:
        from PIL import Image
    except ImportError as error:
        raise TemplateError("a message contains an image; install pillow to train on images") from error
    try:
        return Image.open(io.BytesIO(raw)).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise TemplateError(f"an image of {len(raw)} bytes cannot be decoded: {error}") from error


def _from_data(url: str) -> bytes:
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise TemplateError(f"an image URL starts with {head[:60]!r}; a data: URL must be data:image/...;base64,...")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise TemplateError(f"the data: URL of an image ({len(data)} characters) is not base64: {error}") from error


def _fetched(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as response:
            raw = response.read(LARGEST_IMAGE + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it is also the response, and keeps the connection open
        raise TemplateError(f"the image at {url[:200]} cannot be fetched: {error}") from error
    return bounded(raw, url)

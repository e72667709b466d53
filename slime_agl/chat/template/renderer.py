"""Render messages to text and encode text to ids, for one tokenizer and one chat template."""

from __future__ import annotations

import copy
import secrets
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime_agl.chat.template.images import Vision, images_of
from slime_agl.chat.template.shape import Shape, find_shape
from slime_agl.chat.template.token_text import token_bytes
from slime_agl.chat.template.tokenizer import Tokenizer, private_core
from slime_agl.errors import TemplateError
from slime_agl.trace.turn import Media, token_array

if TYPE_CHECKING:
    from slime_agl.chat.template.encoder import FastEncoder


class Renderer:
    """Renders a chat template and encodes the text. Thread-safe.

    tokenizer: a Hugging Face tokenizer. Encoding uses a private copy of its Rust core, because the shared one raises
    'Already borrowed' if its settings change while another thread encodes.
    chat_template: Jinja source that replaces the tokenizer's own.
    template_kwargs: variables for every render; those of a single call override them.
    extra_stop_ids: ids that end a turn, besides the tokenizer's end of sequence.
    vision: encodes text with images; without it images are refused.
    encoder: in place of the tokenizer's core, as far as it can; must give the same ids and text (see `fast_encoder`).

    Raises:
        TemplateError: there is no chat template.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        extra_stop_ids: Iterable[int] = (),
        vision: Vision | None = None,
        encoder: FastEncoder | None = None,
    ) -> None:
        if not (chat_template or getattr(tokenizer, "chat_template", None)):
            raise TemplateError(
                f"tokenizer {getattr(tokenizer, 'name_or_path', '') or type(tokenizer).__name__} has no chat template; "
                "use an instruct checkpoint, or name a template file as chat_template_path, beside agl: in the file of "
                "--custom-config-path"
            )
        self.tokenizer = self._tokenizer = tokenizer
        self._template = chat_template
        self.vision = vision or Vision(lambda: None)
        self._template_kwargs = dict(template_kwargs or {})
        self._core = private_core(tokenizer)
        self._encoder = encoder
        self._slow_lock = threading.Lock()
        self._added = frozenset(getattr(tokenizer, "added_tokens_decoder", ())) | frozenset(tokenizer.all_special_ids)
        own = [tokenizer.eos_token_id] if isinstance(tokenizer.eos_token_id, int) else []
        self.stop_ids: frozenset[int] = frozenset()
        self.marker_ids: frozenset[int] = frozenset()
        self.stop_tokens: tuple[str, ...] = ()
        self._set_stop_ids(frozenset(own) | frozenset(extra_stop_ids))
        self._shape = Shape()
        self._shape = find_shape(self._trial)

    @property
    def template(self) -> str:
        """The source of the template, or of all of them if the tokenizer has several."""
        own = self._template or self._tokenizer.chat_template or ""
        return own if isinstance(own, str) else "\n".join(own.values())

    def add_stop_id(self, stop_id: int) -> None:
        """Add an id that the engine reported as the end of a turn."""
        if stop_id not in self.stop_ids:
            self._set_stop_ids(self.stop_ids | {stop_id})

    def with_stop_ids(self, more: Iterable[int]) -> Renderer:
        """Return a renderer of the same template with `more` among its stop ids."""
        other = copy.copy(self)
        other._set_stop_ids(self.stop_ids | frozenset(more))
        return other

    def added_ids(self, text: str) -> list[int]:
        """Return the ids of the added tokens in `text`, in order: special tokens, and words of call syntax."""
        return [token for token in self.encode(text) if token in self._added]

    def render(
        self,
        messages: Sequence[dict],
        tools: list[dict] | None,
        kwargs: Mapping[str, object] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """Return the template's text for normalised messages.

        Raises:
            TemplateError: the template raised; carries its message.
        """
        shape = self._shape
        variables = {**self._template_kwargs, **(kwargs or {})}
        try:
            return self._tokenizer.apply_chat_template(
                [shape.apply(message) for message in messages] if shape != Shape() else list(messages),
                tools=tools or None,
                chat_template=self._template,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **variables,
            )
        except Exception as error:  # a template is a program of its own and may raise anything
            images = len(images_of(messages))
            hint = f"; they contain {images} images, and this template seems to take text only" if images else ""
            roles = ", ".join(str(message.get("role")) for message in messages[-4:])
            raise TemplateError(
                f"the chat template refuses {len(messages)} messages (last roles: {roles}): "
                f"{type(error).__name__}: {error}{hint}"
            ) from error

    def render_open(
        self, messages: Sequence[dict], text: str, tools: list[dict] | None, kwargs: Mapping[str, object] | None = None
    ) -> str:
        """Return the template's text for messages and an unfinished assistant message that says `text`.

        The message is rendered as part of the conversation: text that the template writes before it (such as an empty
        `<think>` block) stays, text after it is cut off.

        Raises:
            TemplateError: the template refuses the messages, or does not write the text exactly once.
        """
        mark = "Mrk" + secrets.token_hex(8)
        opened = {"role": "assistant", "content": text + mark}
        written = self.render([*messages, opened], tools, kwargs, generation_prompt=False)
        if written.count(mark) != 1:
            raise TemplateError(
                f"the chat template writes an unfinished assistant message {written.count(mark)} times, not once; "
                "it cannot be continued"
            )
        return written.partition(mark)[0]

    def prompt_ids(
        self, messages: Sequence[dict], tools: list[dict] | None, kwargs: Mapping[str, object] | None = None
    ) -> list[int]:
        """Return the ids of a first prompt: all messages and the generation prompt."""
        return self.encode_with_images(self.render(messages, tools, kwargs), messages)[0].tolist()

    def encode_with_images(self, text: str, messages: Sequence[dict]) -> tuple[array, Media | None]:
        """Encode rendered text with the images of `messages`; return ids and images.

        Raises:
            TemplateError: an image cannot be encoded.
        """
        urls = images_of(messages)
        if not urls:
            return self.packed(text), None
        ids, media = self.vision.encode(text, urls)
        return token_array(ids), media

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of `text`; no beginning or end of sequence is added by default."""
        return self._by_tokenizer(text, special=True) if add_special_tokens else self.packed(text).tolist()

    def packed(self, text: str) -> array:
        """Return the ids of `text` as an array; no beginning or end of sequence is added."""
        ids = None if self._encoder is None else self._encoder.encode(text)
        return token_array(self._by_tokenizer(text, special=False)) if ids is None else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of `ids`, without clean-up of spaces."""
        if self._encoder is not None and not skip_special_tokens and (text := self._encoder.decode(ids)) is not None:
            return text
        if self._core is not None:
            return self._core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        with self._slow_lock:
            return self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        """Return the UTF-8 bytes of each id on its own."""
        return token_bytes(self._tokenizer, ids)

    def _by_tokenizer(self, text: str, *, special: bool) -> list[int]:
        """Encode with the tokenizer itself. special: add the beginning and end of sequence."""
        if self._core is not None:
            return self._core.encode(text, add_special_tokens=special).ids
        with self._slow_lock:
            return list(self._tokenizer.encode(text, add_special_tokens=special))

    def _set_stop_ids(self, stop_ids: frozenset[int]) -> None:
        """Set the stop ids, and the markers among them: those that show the end of a turn in rendered text.

        Only added tokens are markers: an ordinary word that is a stop id also occurs inside messages.
        """
        texts = {i: self.decode([i]) for i in stop_ids if i in self._added}
        markers = {i: text for i, text in texts.items() if text.strip() and self.encode(text) == [i]}
        self.stop_ids = stop_ids
        self.marker_ids = frozenset(markers)
        self.stop_tokens = tuple(sorted(markers.values(), key=len, reverse=True))

    def _trial(self, messages: list[dict], tools: list[dict] | None) -> str | None:
        try:
            return self.render(messages, tools)
        except TemplateError:
            return None

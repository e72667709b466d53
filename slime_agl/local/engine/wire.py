"""The JSON of SGLang's `/generate`: parse requests, write answers."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from slime_agl.errors import EngineRejected, closest
from slime_agl.local.engine.backend import BackendInfo, Finish, Generated, GenerateRequest
from slime_agl.local.engine.sampling import parse_sampling_params

_READ = frozenset({"input_ids", "text", "sampling_params", "return_logprob", "logprob_start_len", "stream", "rid"})
# Bookkeeping fields that affect neither tokens nor answers.
_IGNORED = frozenset({"model", "log_metrics", "no_logs", "background", "priority", "extra_key", "custom_labels"})
# Fields of SGLang and its router that have an effect and are not supported here.
_UNSUPPORTED = frozenset(
    "input_embeds image_data video_data audio_data modalities session_params lora_path lora_id custom_logit_processor "
    "return_hidden_states return_routed_experts return_text_in_logprobs return_bytes return_entropy top_logprobs_num "
    "token_ids_logprob bootstrap_host bootstrap_port bootstrap_room return_prompt_token_ids stream_options".split()
)


def parse_generate(
    body: object, *, info: BackendInfo, encode: Callable[[str], list[int]], headers: Mapping[str, str]
) -> GenerateRequest:
    """Parse the body of a `/generate` request.

    Raises:
        EngineRejected: status 400, naming the field and the numbers.
    """
    if not isinstance(body, dict):
        raise EngineRejected(f"the request body is a JSON {type(body).__name__}, it must be an object", status=400)
    _refuse_unsupported(body)
    params = body.get("sampling_params") or {}
    if not isinstance(params, dict):
        raise EngineRejected("sampling_params must be an object; send batches as single requests", status=400)
    sampling = parse_sampling_params(params)
    ids = _input_ids(body, info, encode)
    _check_length(len(ids), sampling.max_new_tokens, info.context_length)
    rid = body.get("rid") or uuid.uuid4().hex
    if not isinstance(rid, str):
        raise EngineRejected(f"rid is a {type(rid).__name__}, it must be a string", status=400)
    return GenerateRequest(
        rid=rid,
        input_ids=ids,
        sampling=sampling,
        return_logprob=bool(body.get("return_logprob")),
        score_from=_score_from(body, len(ids)),
        stream=bool(body.get("stream")),
        body=body,
        headers=headers,
    )


def answer_json(request: GenerateRequest, answer: Generated, seconds: float) -> dict[str, object]:
    """Return an answer, or an update of a streamed one, as SGLang writes it."""
    meta: dict[str, object] = {
        "id": request.rid,
        "finish_reason": _finish_json(answer.finish, len(answer.output_ids)),
        "prompt_tokens": answer.prompt_tokens,
        "weight_version": answer.weight_version,
        "completion_tokens": len(answer.output_ids),
        "cached_tokens": answer.cached_tokens,
        "e2e_latency": seconds,
    }
    if request.return_logprob:
        pairs = zip(answer.logprobs, answer.output_ids, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
    meta.update(answer.meta)
    return {"text": answer.text, "output_ids": list(answer.output_ids), "meta_info": meta}


def prompt_too_long(prompt: int, context: int) -> EngineRejected:
    """Return SGLang's own refusal."""
    return EngineRejected(
        f"The input ({prompt} tokens) is longer than the model's context length ({context} tokens).", status=400
    )


def error_json(message: str) -> dict[str, object]:
    return {"error": {"message": message}}


def _finish_json(finish: Finish | None, length: int) -> dict[str, object] | None:
    if finish is None:
        return None
    if finish.kind == "length":
        return {"type": "length", "length": length}
    detail = {"message": finish.message or None, "matched": finish.matched}
    return {"type": finish.kind, **{name: value for name, value in detail.items() if value is not None}}


def _refuse_unsupported(body: Mapping[str, object]) -> None:
    for name, value in body.items():
        if name in _READ or name in _IGNORED or not value:
            continue
        if name in _UNSUPPORTED:
            raise EngineRejected(f"{name} is {value!r:.80}; the local engine has no {name}, leave it out", status=400)
        hint = closest(name, _READ | _IGNORED | _UNSUPPORTED)
        raise EngineRejected(f"the request has an unknown field {name!r}.{hint}", status=400)


def _input_ids(body: Mapping[str, object], info: BackendInfo, encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    ids, text = body.get("input_ids"), body.get("text")
    if (ids is None) == (text is None):
        raise EngineRejected("exactly one of input_ids and text must be given", status=400)
    if text is not None:
        if not isinstance(text, str):
            raise EngineRejected(f"text is a {type(text).__name__}; send one string per request", status=400)
        ids = encode(text)
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        raise EngineRejected("input_ids must be a flat list of integers; send batches as single requests", status=400)
    if not ids:
        raise EngineRejected("input_ids is empty; the prompt needs at least one token", status=400)
    if min(ids) < 0 or max(ids) >= info.vocab_size:
        wrong = next(item for item in ids if not 0 <= item < info.vocab_size)
        raise EngineRejected(f"input_ids contains {wrong}, the vocabulary has {info.vocab_size} ids", status=400)
    return tuple(ids)


def _score_from(body: Mapping[str, object], prompt: int) -> int | None:
    """The first token to score; None for -1, which is SGLang's default and scores none."""
    first = body.get("logprob_start_len")
    if first is None or first == -1 or not body.get("return_logprob"):
        return None
    if type(first) is not int or not 0 <= first < prompt:
        raise EngineRejected(
            f"logprob_start_len is {first!r}, it must be -1 or below the prompt's {prompt} tokens", status=400
        )
    return first


def _check_length(prompt: int, new: int, context: int) -> None:
    if prompt >= context:
        raise prompt_too_long(prompt, context)
    if prompt + new > context:
        raise EngineRejected(
            f"Requested token count exceeds the model's maximum context length of {context} tokens: "
            f"{prompt} tokens of input_ids plus max_new_tokens {new} are {prompt + new}.",
            status=400,
        )

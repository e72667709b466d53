"""What `slime-agl doctor` looks at."""

from __future__ import annotations

import asyncio
import importlib.metadata as metadata
import importlib.util
import os
import platform
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import yaml

from slime_agl import __version__
from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.audit import audit
from slime_agl.chat.proof.report import HIDDEN
from slime_agl.chat.template.renderer import Renderer, load_tokenizer, stop_ids_of
from slime_agl.cli.address import require_bindable
from slime_agl.cli.slime_flags import look_at_flags
from slime_agl.config import Config
from slime_agl.engine.router import RouterEngine
from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.host import load_object, slime_available, where
from slime_agl.lightning.agents import load_agent
from slime_agl.local.engine.smollm2 import resolve_model
from slime_agl.report.checks import Finding
from slime_agl.reward import load_reward_function
from slime_agl.rollout.tasks import task_builder

FLAGS = (
    "--rollout-function-path",
    "--custom-rm-path",
    "--custom-config-path",
    "--custom-reward-post-process-path",
    "--data-source-path",
    "--custom-generate-function-path",
)
# distribution -> (versions that were tried, what it is for)
TRIED = {
    "agentlightning": ("0.3.", "required"),
    "sglang": ("0.5.15", "optional: its parsers of tool calls and reasoning"),
    "sglang-router": ("0.3.", "optional: the router of the local engine"),
    "torch": ("2.", "optional: the local engine"),
    "transformers": ("5.", "required"),
    "uvloop": ("0.", "optional: a faster event loop"),
}


def look(
    *,
    config: Path | None,
    model: str | None,
    parser: str | None,
    router: str | None,
    slime: Path | None,
    flags: Sequence[str] = (),
) -> list[Finding]:
    """Everything that was asked for, in the order in which a run would meet it."""
    findings = [_python(), *_versions(), *_slime(slime), _loopback()]
    if config is not None:
        findings += _config(config)
    if flags:
        findings += _flags_of_a_run(flags, config)
    if model is not None:
        findings += _model(model, parser)
    if router is not None:
        findings.append(_asked("router", lambda: _router(router)))
    return findings


def _asked(name: str, question: Callable[[], str]) -> Finding:
    """Ask; an error that a person can mend is the answer."""
    try:
        return Finding(name, "pass", question())
    except SlimeAglError as error:
        return Finding(name, "fail", str(error))


def _python() -> Finding:
    return Finding("python", "pass", f"{platform.python_version()} on {platform.system()}, slime_agl {__version__}")


def _versions() -> Iterator[Finding]:
    for name, (tried, purpose) in TRIED.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            needed = purpose == "required"
            mend = f"pip install {name}" if needed else "not installed"
            yield Finding(name, "fail" if needed else "pass", f"{mend} ({purpose})")
            continue
        fits = version.startswith(tried)
        wrong = "fail" if name == "agentlightning" else "look"
        words = version if fits else f"{version}; versions {tried}* were tried: install one of them if something breaks"
        yield Finding(name, "pass" if fits else wrong, words)


def _slime(checkout: Path | None) -> Iterator[Finding]:
    if slime_available():
        yield Finding("slime", "pass", where())
        yield from _flags()
    elif checkout is not None and not (checkout / "slime" / "utils" / "types.py").is_file():
        yield Finding(
            "slime", "fail", f"{checkout} has no slime/utils/types.py; name the directory that holds train.py"
        )
    elif checkout is not None:
        yield Finding(
            "slime", "fail", f"slime at {checkout} cannot be imported: install what it needs (torch among it)"
        )
    elif importlib.util.find_spec("slime") is not None:
        yield Finding("slime", "fail", "a package called slime is installed that is not THUDM's: pip uninstall slime")
    else:
        yield Finding("slime", "look", "not importable, stand-ins are used; put a checkout on PYTHONPATH to train")


def _flags() -> Iterator[Finding]:
    spec = importlib.util.find_spec("slime.utils")
    places = [Path(place, "arguments.py") for place in (spec.submodule_search_locations or () if spec else ())]
    text = "".join(place.read_text(encoding="utf-8") for place in places if place.is_file())
    missing = [flag for flag in FLAGS if f'"{flag}"' not in text]
    if missing:
        yield Finding("slime's flags", "fail", f"this slime does not know {', '.join(missing)}: update it")
    else:
        yield Finding("slime's flags", "pass", f"all {len(FLAGS)} are known")


def _loopback() -> Finding:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        return Finding("loopback", "fail", f"127.0.0.1 cannot be bound ({error.strerror}); the gateway needs it")
    proxies = [name for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if os.environ.get(name)]
    exempt = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    if proxies and not {"127.0.0.1", "*"} & set(exempt.split(",")):
        return Finding(
            "loopback", "fail", f"{proxies[0]} is set: agents' clients would ask the proxy; export no_proxy=127.0.0.1"
        )
    return Finding("loopback", "pass", "can be bound, and no proxy stands before it")


def _flags_of_a_run(flags: Sequence[str], path: Path | None) -> Iterator[Finding]:
    """slime sets every key of the YAML file as an argument, after the flags."""
    try:
        loaded = {} if path is None else yaml.safe_load(path.read_text(encoding="utf-8"))
        config = Config.read(loaded["agl"]) if path is not None else Config()
    except (SlimeAglError, yaml.YAMLError, TypeError, KeyError):
        return  # which `_config` has told
    yield from look_at_flags(flags, {name: value for name, value in loaded.items() if name != "agl"}, config)


def _config(path: Path) -> Iterator[Finding]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        config = Config.read(loaded.get("agl") if isinstance(loaded, dict) else None)
    except (SlimeAglError, yaml.YAMLError) as error:
        yield Finding("config", "fail", f"{path}: {error}")
        return
    yield Finding("config", "pass", f"{path} is understood")
    yield _asked("agl.agent", lambda: f"{config.agent} is {type(load_agent(load_object(config.agent))).__name__}")
    yield _asked("agl.task", lambda: "tasks can be made" if task_builder(config.task) else "")
    yield _asked("agl.reward", lambda: f"{config.reward}" if load_reward_function(config.reward) else "the agent's own")
    yield _asked("agl.gateway.port", lambda: _bindable(config))
    yield _asked("agl.record_dir", lambda: _writable(config.record_dir))
    if config.sampling == "agent":
        yield Finding("agl.sampling", "look", "agents choose the temperature: logprobs are off-policy for the trainer")
    if config.spans == "tokens":
        yield Finding("agl.spans", "look", "token ids in spans cost about 1 ms and the whole prompt a turn")


def _bindable(config: Config) -> str:
    host, port = config.gateway.host, config.gateway.port
    require_bindable(
        host, port, "set agl.gateway.port to 0 or to a free port, agl.gateway.host to an address of this machine"
    )
    return f"{host}:{port or 'any free port'} can be bound"


def _writable(directory: str | None) -> str:
    if directory is None:
        return "nothing is recorded"
    place = Path(directory).absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            return f"{directory} can be written"
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written ({error.strerror}); name a writable directory") from error


def _model(model: str, parser: str | None) -> Iterator[Finding]:
    try:
        checkpoint = str(resolve_model(model))
        renderer = Renderer(load_tokenizer(checkpoint), extra_stop_ids=stop_ids_of(checkpoint))
    except SlimeAglError as error:
        yield Finding("model", "fail", str(error))
        return
    yield Finding("model", "pass", f"{checkpoint}; turns end with {', '.join(renderer.stop_tokens) or 'no token'}")
    yield from _template(renderer)
    yield _asked("tool-call parser", lambda: _parser(renderer, parser))


def _template(renderer: Renderer) -> Iterator[Finding]:
    report = audit(renderer).report
    forks = [f"{kind} ({found.reason})" for kind, found in report.kinds.items() if found.mode == "fork"]
    kwargs = (
        f"; {dict(report.history_kwargs)} as --apply-chat-template-kwargs keeps reasoning"
        if report.history_kwargs
        else ""
    )
    if forks:
        yield Finding("chat template", "look", f"forks at {', '.join(forks)}{kwargs}; see slime-agl audit")
    else:
        yield Finding("chat template", "pass", f"all {len(report.kinds)} kinds of continuation are exact{kwargs}")
    for stop in report.missing_stops:
        yield Finding("stop tokens", "look", f"{', '.join(stop.kinds)} fork: {stop.advice()}")
    if report.hidden:
        hidden = ", ".join(HIDDEN[name] for name in report.hidden)
        yield Finding(
            "hidden from the model", "look", f"the template does not show {hidden}; give it another if agents use them"
        )


def _parser(renderer: Renderer, name: str | None) -> str:
    ReplyParser(renderer, tool_call_parser=name)
    return f"sglang's {name}" if name and importlib.util.find_spec("sglang") else "built-in"


def _router(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--router is {url!r}, it must look like http://127.0.0.1:30000")

    async def ask() -> str:
        engine = RouterEngine(url)
        await engine.start()
        try:
            info = await engine.info()
        finally:
            await engine.close()
        return f"{url} answers: {info.model_path or 'unnamed model'}, context {info.context_length or 'unknown'}"

    return asyncio.run(ask())

"""The checks of `slime-agl doctor`: machine, configuration, slime's flags, chat template, router, cluster."""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import yaml

from slime_agl.assemble import load_agent_of
from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.audit import audit
from slime_agl.chat.proof.report import HIDDEN
from slime_agl.chat.template.loader import load_tokenizer, stop_ids_of
from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config
from slime_agl.engine.router import RouterEngine
from slime_agl.errors import ConfigError, SlimeAglError
from slime_agl.executor.tasks import task_builder
from slime_agl.lightning.agents import load_agent
from slime_agl.local.engine.smollm2 import resolve_model
from slime_agl.preflight.address import require_bindable
from slime_agl.preflight.cluster import look_at_cluster
from slime_agl.preflight.flags import look_at_flags, read_flags
from slime_agl.preflight.machine import look_at_machine
from slime_agl.report.checks import Finding
from slime_agl.reward import load_reward_function
from slime_agl.workers.placement import connected


def look(
    *,
    config: Path | None,
    model: str | None,
    parser: str | None,
    router: str | None,
    slime: Path | None,
    flags: Sequence[str] = (),
    cluster: str | None = None,
) -> list[Finding]:
    """Check the machine and everything named, in the order in which a run would meet it.

    cluster: address of a Ray cluster; one that this process is connected to is checked without being named.
    """
    findings = [*look_at_machine(slime)]
    if config is not None:
        findings += _config(config)
    if flags:
        findings += _flags_of_a_run(flags, config)
    if model is not None:
        findings += _model(model, parser)
    if router is not None:
        findings.append(_checked("router", lambda: _router(router)))
    if cluster is not None or connected():
        findings += _cluster(cluster, config, model, router, flags)
    return findings


def _cluster(
    address: str | None, path: Path | None, model: str | None, router: str | None, flags: Sequence[str]
) -> list[Finding]:
    """Check a cluster for what the command line names, else slime's flags and the YAML file."""
    named = {**read_flags(flags), **_loaded(path)}
    checkpoint = named.get("hf_checkpoint") if model is None else _resolved(model)
    host, port = named.get("sglang_router_ip"), named.get("sglang_router_port")
    url = router or (f"http://{host}:{port}" if host and port else None)
    try:
        config = Config.read(named.get("agl")) if "agl" in named else None
    except SlimeAglError:
        config = None  # reported by `_config`
    return look_at_cluster(address, checkpoint=checkpoint and str(checkpoint), router=url, config=config)


def _loaded(path: Path | None) -> dict[str, object]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8")) if path is not None else {}
    except yaml.YAMLError:
        return {}  # reported by `_config`
    return loaded if isinstance(loaded, dict) else {}


def _resolved(model: str) -> str:
    try:
        return str(resolve_model(model))
    except SlimeAglError:
        return model  # it may exist on the nodes; that it does not here is reported by `_model`


def _checked(name: str, check: Callable[[], str]) -> Finding:
    """Run a check; an error that the user can fix becomes the finding."""
    try:
        return Finding(name, "pass", check())
    except SlimeAglError as error:
        return Finding(name, "fail", str(error))


def _flags_of_a_run(flags: Sequence[str], path: Path | None) -> Iterator[Finding]:
    """Check slime's flags together with the YAML file, whose keys slime sets after them."""
    try:
        loaded = {} if path is None else yaml.safe_load(path.read_text(encoding="utf-8"))
        config = Config.read(loaded["agl"]) if path is not None else Config()
    except (SlimeAglError, yaml.YAMLError, TypeError, KeyError):
        return  # reported by `_config`
    yield from look_at_flags(flags, {name: value for name, value in loaded.items() if name != "agl"}, config)


def _config(path: Path) -> Iterator[Finding]:
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        config = Config.read(loaded.get("agl") if isinstance(loaded, dict) else None)
    except (SlimeAglError, yaml.YAMLError) as error:
        yield Finding("config", "fail", f"{path}: {error}")
        return
    yield Finding("config", "pass", f"{path} is valid")
    if config.external:
        yield Finding("agl.store", "pass", f"{config.store.url or config.store.serve}: its runners bring the agent")
    else:
        yield _checked("agl.agent", lambda: f"{config.agent} is {type(load_agent(load_agent_of(config))).__name__}")
    yield _checked("agl.task", lambda: "tasks can be made" if task_builder(config.task) else "")
    yield _checked(
        "agl.reward", lambda: f"{config.reward}" if load_reward_function(config.reward) else "the agent's own"
    )
    yield _checked("agl.gateway.port", lambda: _bindable(config))
    yield _checked("agl.record_dir", lambda: _writable(config.record_dir))
    if config.sampling == "agent":
        yield Finding("agl.sampling", "look", "agents choose the temperature: logprobs are off-policy for the trainer")
    if config.spans == "tokens":
        yield Finding("agl.spans", "look", "token ids in spans cost about 1 ms and the whole prompt per turn")


def _bindable(config: Config) -> str:
    host, port = config.gateway.host, config.gateway.port
    advice = "set agl.gateway.port to 0 or to a free port, agl.gateway.host to an address of this machine"
    require_bindable(host, port, advice)
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
    yield _checked("tool-call parser", lambda: _parser(renderer, parser))


def _template(renderer: Renderer) -> Iterator[Finding]:
    report = audit(renderer).report
    forks = [f"{kind} ({found.reason})" for kind, found in report.kinds.items() if found.method == "fork"]
    keeps = dict(report.history_kwargs)
    kwargs = f"; {keeps} as --apply-chat-template-kwargs keeps reasoning" if keeps else ""
    if forks:
        yield Finding("chat template", "look", f"forks at {', '.join(forks)}{kwargs}; see slime-agl audit")
    else:
        yield Finding("chat template", "pass", f"all {len(report.kinds)} kinds of continuation are exact{kwargs}")
    if told := report.system_messages():
        yield Finding("system messages", "pass", told)
    for stop in report.missing_stops:
        yield Finding("stop tokens", "look", f"{', '.join(stop.kinds)} fork: {stop.advice()}")
    if report.hidden:
        hidden = ", ".join(HIDDEN[name] for name in report.hidden)
        words = f"the template omits {hidden}; use another template if agents need them"
        yield Finding("hidden from the model", "look", words)


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

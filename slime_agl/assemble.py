"""Choose and assemble the parts; hold the one global, the live runtime."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slime_agl.chat.parse.reply import ReplyParser
from slime_agl.chat.proof.audit import TemplateAudit, audit
from slime_agl.chat.template.delta import DeltaEncoder
from slime_agl.chat.template.encoder import fast_encoder
from slime_agl.chat.template.images import Vision
from slime_agl.chat.template.loader import load_tokenizer, stop_ids_of, vocab_size_of
from slime_agl.chat.template.renderer import Renderer
from slime_agl.config import Config
from slime_agl.config.harness import HarnessConfig
from slime_agl.engine.base import Engine, Replay
from slime_agl.engine.router import RouterEngine
from slime_agl.errors import ConfigError
from slime_agl.gateway.http.server import Gateway, GatewayParts
from slime_agl.gateway.turn.selection import Selection
from slime_agl.harness.agent import Harness
from slime_agl.host import RolloutArgs, load_object, load_processor, where
from slime_agl.in_process import InProcess
from slime_agl.lightning.external import ExternalLightning
from slime_agl.lightning.service import Lightning
from slime_agl.lightning.stores import make_store
from slime_agl.pace import Law
from slime_agl.runtime import Runtime
from slime_agl.sandbox.reach import Serving
from slime_agl.workers.build import make_fleet
from slime_agl.workers.importable import require_portable

logger = logging.getLogger(__name__)

# Leads a value of agl.templates that is a path.
IN_FILE = "file:"


def max_attempts_of(config: Config) -> int:
    """Attempts at an execution, those included that a sandbox's failure costs a harness."""
    lost = config.sandbox.retries if isinstance(config.agent, HarnessConfig) else 0
    return config.failure.max_attempts + lost


def make_renderer(
    args: RolloutArgs, tokenizer: Any, *, image_dir: str | None = None, trust_remote_code: bool = True
) -> Renderer:
    """Make the renderer of slime's checkpoint and chat template. trust_remote_code: see `make_runtime`.

    Raises:
        ConfigError: the template file cannot be read.
        TemplateError: the tokenizer has no chat template.
    """
    return Renderer(
        tokenizer,
        chat_template=_template(args.chat_template_path),
        template_kwargs=args.apply_chat_template_kwargs,
        extra_stop_ids=stop_ids_of(str(args.hf_checkpoint)) | set(args.rollout_stop_token_ids or ()),
        encoder=fast_encoder(tokenizer),
        vision=Vision(
            lambda: load_processor(str(args.hf_checkpoint), trust_remote_code=trust_remote_code),
            None if image_dir is None else Path(image_dir),
        ),
    )


def make_plan(renderer: Renderer, checkpoint: str) -> TemplateAudit:
    """Audit the chat template; log where it forks, what it hides from the model, and which stop token it lacks."""
    plan = audit(renderer)
    forks = [f"{kind} ({reason})" for kind, reason in plan.report.forks().items()]
    logger.info("chat template of %s: %s", checkpoint, f"forks at {', '.join(forks)}" if forks else "no forks")
    for warning in plan.report.warnings():
        logger.warning("chat template of %s: %s", checkpoint, warning)
    return plan


def load_agent_of(config: Config, serving: Callable[[], Serving | None] = lambda: None) -> Any:
    """The agent of a configuration: what its import path names, or a harness.

    serving: the gateway, once it runs.

    Raises:
        ConfigError: the path leads nowhere; the harness or the backend of its sandboxes is unknown.
    """
    if isinstance(config.agent, str):
        return load_object(config.agent, key="agl.agent")
    return Harness(
        sandbox=config.sandbox,
        serving=serving,
        tasks=config.tasks.folder,
        zero_reward=config.failure.negative_reward,
        **dataclasses.asdict(config.agent),
    )


def make_runtime(
    config: Config,
    args: RolloutArgs,
    *,
    engine: Engine | None = None,
    trust_remote_code: bool = True,
    origin: str = "",
) -> InProcess:
    """Assemble a runtime without starting it. engine: replaces slime's router. origin: see SessionSpec.

    trust_remote_code: allow the checkpoint's own code to run, as slime does.

    Raises:
        ConfigError, TemplateError: a part cannot be made from this configuration.
    """
    first = config.runners.first_limit(args.concurrency)
    law = Law(first, args.rollout_max_context_len) if config.runners.follows else None
    external = make_external(config, args) if config.external else None
    lightning = external or make_lightning(config, args, lambda: gateway, first if law is None else law.most)
    checkpoint = _checkpoint(args)
    tokenizer = load_tokenizer(checkpoint, trust_remote_code=trust_remote_code)
    renderer = make_renderer(args, tokenizer, image_dir=config.image_dir, trust_remote_code=trust_remote_code)
    plan = make_plan(renderer, checkpoint)
    parts = GatewayParts(
        engine=engine
        or RouterEngine(args.router_url, replay=_replay(args), vocab_size=vocab_size_of(checkpoint, tokenizer)),
        renderer=renderer,
        delta=DeltaEncoder(renderer, plan, history=config.history),
        parser=ReplyParser(
            renderer, tool_call_parser=args.sglang_tool_call_parser, reasoning_parser=args.sglang_reasoning_parser
        ),
        sink=lightning.sink,
        model=config.model,
        policy=config.sampling,
        selection=Selection.of(config.train),
        doorman=None if external is None else external.doorman,
    )
    gateway = Gateway(config.gateway, parts)
    return InProcess(config=config, renderer=renderer, gateway=gateway, lightning=lightning, origin=origin, law=law)


def make_lightning(config: Config, args: RolloutArgs, serving: Callable[[], Serving | None], slots: int) -> Lightning:
    """Agent Lightning with `slots` runners of this process. serving: see `load_agent_of`. Raises as `load_agent_of`."""
    return Lightning(
        load_agent_of(config, serving),
        mode="auto" if config.runners.mode == "external" else config.runners.mode,
        max_concurrency=slots,
        timeout_seconds=config.runners.timeout_seconds,
        max_attempts=max_attempts_of(config),
        end_leftovers=config.runners.end_leftovers,
        tokens=config.spans == "tokens",
        frozen=args.frozen_models,
        resource_name=config.resource_name,
        templates=_prompt_templates(config.templates or {}),
        dashboard_port=config.dashboard_port,
    )


def make_external(config: Config, args: RolloutArgs) -> ExternalLightning:
    """Agent Lightning with the runners of `agl.store`."""
    retried = {"agent_error": "failed", "deadline": "timeout"}
    return ExternalLightning(
        make_store(config.store),
        timeout_seconds=config.runners.timeout_seconds,
        lost_seconds=config.runners.lost_seconds,
        max_attempts=config.failure.max_attempts,
        retried=[status for failure, status in retried.items() if config.failure.policy(failure) == "retry"],
        tokens=config.spans == "tokens",
        templates=_prompt_templates(config.templates or {}),
        frozen=args.frozen_models,
        resource_name=config.resource_name,
        initial=config.store.resources,
    )


def _make_fleet(config: Config, args: RolloutArgs) -> Runtime:
    require_portable(config)
    checkpoint = _checkpoint(args)
    return make_fleet(config, args, make_renderer(args, load_tokenizer(checkpoint)))


def _checkpoint(args: RolloutArgs) -> str:
    if args.hf_checkpoint is None:
        raise ConfigError(
            "--hf-checkpoint is missing; it names the tokenizer and the chat template that agents' messages go through"
        )
    return str(args.hf_checkpoint)


def _replay(args: RolloutArgs) -> Replay:
    return Replay(args.experts_width, args.rollout_top_p if args.rollout_top_p != 1.0 else None)


def _prompt_templates(given: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of `agl.templates`, read from their files where one is named."""
    texts = {}
    for name, text in given.items():
        if text.startswith(IN_FILE):
            path = Path(text.removeprefix(IN_FILE))
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ConfigError(f"agl.templates.{name}: {path} cannot be read: {error}") from error
        texts[name] = text
    return texts


def _template(path: Any) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"chat_template_path {path} cannot be read: {error.strerror}") from error


class _Live:
    """Hold the runtime behind `generate`: slime names a function path, which offers no other place for state."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runtime: Runtime | None = None
        self.made_of: tuple[Any, ...] = ()


_live = _Live()


def live_runtime(config: Config, args: RolloutArgs) -> Runtime:
    """Return the running runtime for these settings; start it on the first call, restart it when they change.

    Raises:
        ConfigError, TemplateError: see `make_runtime`; ConfigError also if replay data does not arrive.
        EngineUnavailable: no engine answers at the router's address.
    """
    made_of = (
        config,
        args.router_url,
        args.hf_checkpoint,
        args.chat_template_path,
        args.apply_chat_template_kwargs,
        tuple(args.rollout_stop_token_ids or ()),
        args.sglang_tool_call_parser,
        args.sglang_reasoning_parser,
        args.concurrency,
        _replay(args),
        args.frozen_models,
    )
    with _live.lock:
        if _live.runtime is not None and _live.made_of == made_of:
            return _live.runtime
        _stop()
        runtime = _make_fleet(config, args) if config.workers.count else make_runtime(config, args)
        runtime.start()
        logger.info("slime_agl runs with %s", where())
        _live.runtime, _live.made_of = runtime, made_of
        return runtime


def install(runtime: Runtime) -> None:
    """Make a runtime the live one, in a process that is a worker."""
    _live.runtime = runtime


def current() -> Runtime | None:
    """Return the live runtime, or None."""
    return _live.runtime


def shutdown() -> None:
    """Stop the live runtime. Idempotent; the next `generate` starts a new one."""
    with _live.lock:
        _stop()


def _stop() -> None:
    runtime, _live.runtime, _live.made_of = _live.runtime, None, ()
    if runtime is not None:
        runtime.stop()


atexit.register(shutdown)

"""`slime_agl.SLIME`: slime as an algorithm of Agent Lightning's Trainer."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from slime_agl.algorithm.driver import Command, ended_by_sigterm, on_ray, run_driver
from slime_agl.algorithm.flags import KnownFlags, check_keys, check_names, words_of
from slime_agl.algorithm.job import Job
from slime_agl.algorithm.rows import TASK, Rows, write_rows
from slime_agl.config import Config
from slime_agl.errors import ConfigError
from slime_agl.host.defaults import CUSTOM_RM, REWARD_POST_PROCESS, ROLLOUT_FUNCTION, default_args
from slime_agl.lightning._agl import (
    AgentOpsTracer,
    FastAlgorithm,
    LightningStore,
    LightningStoreClient,
    LightningStoreServer,
)
from slime_agl.lightning.stores import ServedStore
from slime_agl.local.engine.router import free_port

logger = logging.getLogger(__name__)

LOCAL = "local"
LOCAL_DRIVER, KNOWN_FLAGS = "slime_agl.algorithm.local", "slime_agl.host.known_flags"
JOB = "slime_agl.algorithm.job"
DRIVERS = ("train.py", "train_async.py", LOCAL)
INITIAL = "slime_agl-initial"
EVAL_INTERVAL = 10
RAY_ADDRESS = "http://127.0.0.1:8265"
# In slime's image; Megatron's installed package lacks `megatron.training`.
MEGATRON = Path("/root/Megatron-LM")
# Of the driver and its processes unless set otherwise, as in slime's own scripts.
ENVIRONMENT = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
TRACES, LED = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "SLIME_AGL_LED_TRACES"
HERE = Path(__file__).parents[2]


class SLIME(FastAlgorithm):
    """Train the agent of a Trainer with slime.

        trainer = agl.Trainer(algorithm=slime_agl.SLIME({"hf_checkpoint": ..., "n_samples_per_prompt": 8}), n_runners=8)
        trainer.fit(agent, train_dataset, val_dataset=val_dataset)

    config: slime's flags in snake case, and under `agl` settings of this package. True is a flag without a value, a
        list several values.
    slime_dir: slime's checkout; by default $SLIME_DIR, else where slime can be imported, else /root/slime.
    driver: slime's script, or `local`: no slime and no GPU, but a small model on this machine's CPU, a learner of its
        own and the same rollout, for a first try. `hf_checkpoint` is then `tiny` by default.
    launch: start the driver here, or submit it to Ray's job server ($RAY_ADDRESS, http://127.0.0.1:8265).
    env: further environment variables of the driver and of its processes, also on a Ray cluster.
    work_dir: folder for the datasets and settings that the driver reads, shared with its machine; kept. By default a
        temporary one.

    The Trainer's store and runners are used: the driver enqueues into that store over HTTP, and the runners' calls go
    to the gateway in slime's rollout process. The same object serves `Trainer.fit` and `Trainer.dev`.

    Raises:
        ConfigError: the driver or the way to launch it is unknown, a key or value cannot be a flag.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        slime_dir: str | Path | None = None,
        driver: str = "train.py",
        launch: Literal["subprocess", "ray_job"] = "subprocess",
        env: Mapping[str, str] | None = None,
        work_dir: str | Path | None = None,
    ) -> None:
        super().__init__()
        if driver not in DRIVERS:
            raise ConfigError(f"driver is {driver!r}, it must be one of {', '.join(DRIVERS)}")
        if launch not in ("subprocess", "ray_job"):
            raise ConfigError(f"launch is {launch!r}, it must be subprocess or ray_job")
        if driver == LOCAL and launch == "ray_job":
            raise ConfigError("the local driver runs on this machine; leave launch out")
        self._config, self._driver, self._launch = dict(config), driver, launch
        self._env = dict(env or {})
        self._slime_dir = None if driver == LOCAL else _slime_dir(slime_dir)
        self._work_dir = None if work_dir is None else Path(work_dir)
        _check_section(self._config.get("agl"))
        check_names(self._config)
        if driver == LOCAL:
            check_keys(self._config, _local_flags())
        _lead_traces()

    async def run(self, train_dataset: Rows | None = None, val_dataset: Rows | None = None) -> None:
        """Train to the end of slime's driver. Called by the Trainer.

        Raises:
            ConfigError: a dataset is missing, a row has a value that JSON cannot hold, or a key is not a slime flag.
            HostError: the driver failed; carries the last lines of its log.
        """
        if train_dataset is None:
            raise ConfigError("Trainer.fit was given no train_dataset; slime_agl.SLIME trains on its rows")
        known = await self._known_flags()
        check_keys(self._config, known)
        logger.info("%d flags of slime are known, %s", len(known.flags), "all" if known.whole else "others unchecked")
        async with _served(self.get_store(), self.get_trainer().strategy) as address:
            with self._folder() as folder:
                self._warn_of_tracer()
                section = await self._section(address)
                flags = self._flags(folder, train_dataset, val_dataset)
                command = self._command(folder, flags, section, known)
                logger.info("starting slime's driver: %s", " ".join(command.words))
                with ended_by_sigterm():
                    await run_driver(command)

    def _warn_of_tracer(self) -> None:
        if _fixes_address() and isinstance(self.get_trainer().tracer, AgentOpsTracer):
            logger.warning(
                "with OpenTelemetry 1.45 or later AgentOps exports nothing, so rewards that the agent emits are lost; "
                "rewards that it returns are not. Pass tracer=agl.OtelTracer() to the Trainer, or install "
                "slime_agl[trainer]"
            )

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        if self._work_dir is not None:
            self._work_dir.mkdir(parents=True, exist_ok=True)
            yield self._work_dir.absolute()
            return
        folder = Path(tempfile.mkdtemp(prefix="slime_agl-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _section(self, address: Mapping[str, str]) -> dict[str, Any]:
        """The `agl:` mapping of this run."""
        given = dict(self._config.get("agl") or {})
        store = {**address, **(given.get("store") or {})}
        resources = self.get_initial_resources()
        if resources:
            await self.get_store().update_resources(INITIAL, resources)
            store["resources"] = INITIAL
        return {"task": TASK, **given, "store": store}

    def _flags(self, folder: Path, train: Rows, val: Rows | None) -> dict[str, Any]:
        write_rows(folder / "train.jsonl", train, "train_dataset")
        flags: dict[str, Any] = {
            "rollout_function_path": ROLLOUT_FUNCTION,
            "custom_rm_path": CUSTOM_RM,
            "custom_reward_post_process_path": REWARD_POST_PROCESS,
            "prompt_data": str(folder / "train.jsonl"),
            "input_key": "prompt",
            "metadata_key": "metadata",
        }
        if val is not None and len(val):
            write_rows(folder / "val.jsonl", val, "val_dataset")
            flags |= {"eval_prompt_data": ["val", str(folder / "val.jsonl")], "eval_interval": EVAL_INTERVAL}
        return {**flags, **{name: value for name, value in self._config.items() if name != "agl"}}

    def _command(self, folder: Path, flags: dict[str, Any], section: dict[str, Any], known: KnownFlags) -> Command:
        passed = {**{name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}, **self._env}
        environment = {**os.environ, **passed}
        passed["PYTHONPATH"] = environment["PYTHONPATH"] = self._python_path(environment)
        # The driver has no part in Agent Lightning's roles, and none in the tracing of runners.
        for name in ("AGL_CURRENT_ROLE", TRACES, LED):
            if name not in self._env:
                environment.pop(name, None)
        if self._driver == LOCAL:
            (folder / "local.json").write_text(json.dumps({**flags, "agl": section}), encoding="utf-8")
            words = [sys.executable, "-m", LOCAL_DRIVER, str(folder / "local.json")]
            return Command(words=words, directory=Path.cwd(), environment=environment)
        assert self._slime_dir is not None
        # JSON is YAML.
        (folder / "agl.yaml").write_text(json.dumps({"agl": section}, indent=2), encoding="utf-8")
        arguments = words_of({**flags, "custom_config_path": str(folder / "agl.yaml")}, known)
        there = [str(self._slime_dir / self._driver), *arguments]
        if self._launch == "ray_job":
            # A file, since not every version of Ray quotes the words of a job for its shell.
            script = folder / "driver.sh"
            script.write_text(f"cd {shlex.quote(str(self._slime_dir))} && exec python3 {shlex.join(there)}\n")
            job = Job(
                ray=[_ray_command()],
                address=environment.get("RAY_ADDRESS", RAY_ADDRESS),
                name=f"slime-agl-{secrets.token_hex(6)}",
                words=["sh", str(script)],
                variables=passed,
            )
            words = [sys.executable, "-m", JOB, str(job.written(folder / "job.json"))]
            return Command(words=words, directory=Path.cwd(), environment=environment)
        return on_ray(
            Command(words=[sys.executable, *there], directory=self._slime_dir, environment=environment, passed=passed)
        )

    def _python_path(self, environment: Mapping[str, str]) -> str:
        """Return a path with which the driver imports what this process can: rewards and hooks are import paths."""
        places = [self._slime_dir, sys.path[0] or os.getcwd(), os.getcwd(), HERE, environment.get("PYTHONPATH")]
        if self._slime_dir is not None and (MEGATRON / "megatron" / "training").is_dir():
            places.append(MEGATRON)
        return os.pathsep.join(dict.fromkeys(str(place) for place in places if place))

    async def _known_flags(self) -> KnownFlags:
        """The flags of slime's driver, asked where slime and what it needs can be imported."""
        if self._driver == LOCAL:
            return _local_flags()
        environment = {**os.environ, **self._env}
        environment["PYTHONPATH"] = self._python_path(environment)
        asking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", KNOWN_FLAGS, str(self._slime_dir)),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        told, _ = await asking.communicate()
        try:
            found = json.loads(told.splitlines()[-1])
            return KnownFlags(found["flags"], found["whole"])
        except (ValueError, IndexError, KeyError):
            return KnownFlags()


def _ray_command() -> str:
    """Ray's command beside this interpreter, whose environment may not be activated, else the one on PATH."""
    beside = Path(sys.executable).with_name("ray")
    return str(beside) if beside.is_file() else "ray"


# Of the local learner, beside what rollouts read.
LOCAL_KEYS = ("lr", "entropy_coef", "eps_clip", "eps_clip_high", "clip_grad", "seed", "target_reward", "updates")


def _local_flags() -> KnownFlags:
    return KnownFlags(dict.fromkeys([*vars(default_args()), *LOCAL_KEYS], ""), whole=True)


def _check_section(given: Any) -> None:
    """Raise ConfigError if the settings under `agl` do not fit together, or leave nothing to the Trainer's runners."""
    section = {} if given is None else given
    if not isinstance(section, Mapping):
        raise ConfigError(f"agl is {section!r}, it must be a mapping of keys to values")
    store = section.get("store") or {}
    if isinstance(store, Mapping):
        if store.get("serve"):
            raise ConfigError(
                f"agl.store.serve is {store['serve']}, which is for runners without a Trainer; leave it out: "
                "slime_agl.SLIME uses the Trainer's store"
            )
        section = {**section, "store": {"url": "http://trainer", **store}}
    Config.read(section)


def _slime_dir(given: str | Path | None) -> Path:
    """Find slime's checkout.

    Raises:
        ConfigError: there is none.
    """
    named = given or os.environ.get("SLIME_DIR")
    places = [Path(named)] if named else [*_importable(), Path("/root/slime")]
    for place in places:
        if (place / "train.py").is_file() and (place / "slime" / "utils" / "arguments.py").is_file():
            return place.absolute()
    raise ConfigError(
        f"no checkout of slime in {', '.join(map(str, places))}; pass slime_dir, or set SLIME_DIR. Without slime and "
        'GPU, driver="local" trains a small model on this machine'
    )


def _importable() -> list[Path]:
    return [Path(entry or ".") for entry in sys.path if (Path(entry or ".") / "slime" / "utils" / "types.py").is_file()]


@contextlib.asynccontextmanager
async def _served(store: LightningStore, strategy: object) -> AsyncIterator[dict[str, str]]:
    """The settings `agl.store` by which the driver, another process, reaches the Trainer's store.

    One without a URL, as under the shared-memory strategy, is served on this machine until the end.

    Raises:
        ConfigError: the strategy would not end with the training, or runs several agents on one tracer; spans of
            runners would be sent elsewhere than to the store.
    """
    if isinstance(store, LightningStoreServer | LightningStoreClient):
        url = store.endpoint if isinstance(store, LightningStoreServer) else store.server_address_root
        require_traces_led(url)
        yield {"url": url}
        return
    if getattr(strategy, "main_thread", "algorithm") == "runner":
        raise ConfigError(
            "the Trainer's strategy `shm` runs the agent on the main thread by default, where its runner goes on when "
            'the training has ended; pass strategy={"type": "shm", "main_thread": "algorithm"}, or leave strategy out'
        )
    runners = getattr(strategy, "n_runners", 1)
    if runners != 1:
        raise ConfigError(
            f"n_runners is {runners} under the strategy `shm`, whose threads share one runner "
            "and tracer, which run one agent at a time; set n_runners=1, or leave strategy out"
        )
    key = secrets.token_urlsafe(32)
    served = ServedStore("127.0.0.1", free_port(), key, store)
    await served.open()
    try:
        yield {"url": served.where, "key": key}
    finally:
        await served.close()


def _lead_traces() -> None:
    """Lead the spans of runners, which are forked later, to the Trainer's store.

    OpenTelemetry from 1.45 on keeps the address that its exporter was made with, and Agent Lightning sets it later;
    without this variable, rewards that an agent emits would be sent to localhost:4318. One that was set here earlier,
    in this process or one that started it, is set anew.
    """
    led = os.environ.get(TRACES)
    if not _fixes_address() or (led is not None and led != os.environ.get(LED)):
        return
    host, port = os.environ.get("AGL_SERVER_HOST", "localhost"), os.environ.get("AGL_SERVER_PORT", "4747")
    os.environ[TRACES] = os.environ[LED] = f"http://{host}:{port}/v1/traces"


def _fixes_address() -> bool:
    try:
        version = importlib.metadata.version("opentelemetry-exporter-otlp-proto-http")
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in version.split(".")[:2]) >= (1, 45)


def require_traces_led(url: str) -> None:
    """Raise ConfigError if spans of runners would be sent elsewhere than to the store at `url`."""
    led = os.environ.get(TRACES)
    if not _fixes_address() or led is None:
        return
    if urlsplit(led).port != urlsplit(url).port:
        raise ConfigError(
            f"{TRACES} is {led}, but the Trainer's store is at {url}, so rewards that agents emit would be lost with "
            f"OpenTelemetry 1.45 or later; set AGL_SERVER_PORT={urlsplit(url).port} before slime_agl.SLIME is made "
            f"(in place of Trainer's `port`), or set {TRACES}={url}/v1/traces"
        )

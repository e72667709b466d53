"""Read the `agl:` mapping of slime's --custom-config-path into one frozen tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slime_agl.config.credit import AdvantageConfig, CreditConfig
from slime_agl.config.gateway import GatewayConfig
from slime_agl.config.harness import HarnessConfig, TasksConfig
from slime_agl.config.keys import at_least, key
from slime_agl.config.reading import key_of, read_mapping
from slime_agl.config.sandbox import SandboxConfig
from slime_agl.config.store import StoreConfig
from slime_agl.config.tables import TablesConfig
from slime_agl.config.teacher import check_teacher
from slime_agl.config.train import TrainConfig
from slime_agl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunnersConfig:
    mode: Literal["auto", "async", "thread", "external"] = key(
        "auto",
        "where agents run: `async` on one event loop, `thread` in a thread each, `auto` by the kind of agent, "
        "`external` in the runners of `agl.store`",
    )
    max_concurrency: int | Literal["auto"] | None = key(
        None,
        "maximum concurrent executions; default: slime's `sglang_server_concurrency` times the number of engines; "
        "`auto` follows the engine, between a sixteenth and eight times that: as many as its cache holds, by the "
        "lengths of the executions that ended, and more while agents are mostly at their tools",
    )
    timeout_seconds: float | None = key(
        3600.0, "deadline of an attempt, at which it is sealed, aborted and cancelled; null for none"
    )
    end_leftovers: bool = key(
        True,
        "end what an attempt leaves running (tasks, programs, servers, daemons) with it, and its processes also if "
        "this process is killed; `false` for agents that start a shared helper or server on first use",
    )

    lost_seconds: float = key(
        60.0,
        "external runners: seconds without a sign of an attempt (a turn, a span) after which it counts as lost, if its "
        "runner has stopped its heartbeats or has asked for other work",
    )

    def __post_init__(self) -> None:
        if self.max_concurrency != "auto":
            at_least("agl.runners.max_concurrency", self.max_concurrency, 1)
        if self.lost_seconds <= 0:
            raise ConfigError(f"agl.runners.lost_seconds is {self.lost_seconds:g}, it must be above 0")
        if self.timeout_seconds is not None and self.timeout_seconds <= 0:
            raise ConfigError(
                f"agl.runners.timeout_seconds is {self.timeout_seconds}, it must be above 0, or null for none"
            )

    @property
    def follows(self) -> bool:
        """The number of concurrent executions follows the engine."""
        return self.max_concurrency == "auto"

    def first_limit(self, usual: int) -> int:
        """Concurrent executions to begin with. usual: of slime."""
        return usual if self.max_concurrency in (None, "auto") else self.max_concurrency


Policy = Literal["retry", "mask", "negative"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureConfig:
    agent_error: Policy = key(
        "mask",
        "policy when the agent raises: `mask` leaves a placeholder that neither trains nor counts in a baseline, "
        "`negative` trains on what it did, `retry` runs the agent again and masks after the last attempt",
    )
    engine_error: Policy = key("mask", "the same when the engine fails during an attempt")
    deadline: Policy = key("mask", "the same when an attempt exceeds its deadline")
    max_attempts: int = key(3, "maximum attempts per execution under `retry`")
    negative_reward: float = key(0.0, "reward of a failed execution under `negative`")
    stall_groups: int | None = key(
        None,
        "stop a run that has worked when this many groups in a row have no usable execution and `stall_seconds` have "
        "passed; default: four batches. A run in which nothing has ever worked stops after one batch and 8 executions",
    )
    stall_seconds: float | None = key(
        600.0, "seconds without a usable group, within a step, before a stall stops the run; null for never"
    )

    def __post_init__(self) -> None:
        at_least("agl.failure.max_attempts", self.max_attempts, 1)
        at_least("agl.failure.stall_groups", self.stall_groups, 1)
        if self.stall_seconds is not None and self.stall_seconds < 0:
            raise ConfigError(f"agl.failure.stall_seconds is {self.stall_seconds}, it must be at least 0, or null")

    def policy(self, failure: str) -> Policy:
        """The policy for a failure. One without an LLM call is masked, since it has no tokens."""
        policies: dict[str, Policy] = {
            "agent_error": self.agent_error,
            "engine_error": self.engine_error,
            "deadline": self.deadline,
        }
        return policies.get(failure, "mask")


@dataclass(frozen=True, slots=True)
class AsyncConfig:
    enabled: bool = key(
        False,
        "for `train_async.py`: agents continue between steps and through weight updates; requires engines that are not "
        "colocated",
    )
    max_staleness: int = key(
        1,
        "maximum steps between the start of a group and its delivery: one batch is started ahead, and slow groups may "
        "take this long while others are delivered",
    )

    def __post_init__(self) -> None:
        at_least("agl.async.max_staleness", self.max_staleness, 0)


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    success: float = key(1.0, "reward from which an execution passes, for pass@k")
    repeats: int = key(
        2,
        "under `agl.async`, how often executions of an evaluation run again because weights were updated meanwhile, so "
        "that all tokens are of one version; `0` keeps and counts them",
    )

    def __post_init__(self) -> None:
        at_least("agl.evaluation.repeats", self.repeats, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersConfig:
    count: int | Literal["auto"] = key(
        0,
        "processes that run agents, each with a gateway, store and runners of its own; `0` runs them in slime's "
        "rollout process, `auto` starts as many as the executions need and free CPUs allow. They are Ray actors where "
        "Ray is initialised, and subprocesses elsewhere",
    )
    slots: int = key(128, "maximum concurrent executions per worker")
    num_cpus: float = key(1.0, "CPUs that a worker reserves on its Ray node")
    placement: str = key(
        "spread",
        "Ray nodes for workers: `spread` over all, `cpu_nodes` for those without GPUs, `resource:NAME` for those with "
        "that resource",
    )
    env: tuple[str, ...] = key(
        (),
        "environment variables to pass to workers on Ray, such as the API key of a tool, beside those of the Ray job",
    )
    start_seconds: float = key(120.0, "deadline for all workers to be ready")
    retries: int = key(2, "how often an execution starts again after its worker died; then it is an `engine_error`")
    held_bytes: int | Literal["auto"] = key(
        "auto",
        "bytes of replay data and images of finished executions that stop new ones from starting until a batch takes "
        "them; `auto` is a tenth of the object store of slime's rollout node, or of this machine's memory without Ray",
    )

    def __post_init__(self) -> None:
        if self.count != "auto":
            at_least("agl.workers.count", self.count, 0)
        at_least("agl.workers.slots", self.slots, 1)
        at_least("agl.workers.retries", self.retries, 0)
        if self.held_bytes != "auto":
            at_least("agl.workers.held_bytes", self.held_bytes, 1)
        if self.num_cpus <= 0:
            # Ray ignores where actors without CPUs should go, and puts them all on one node.
            raise ConfigError(f"agl.workers.num_cpus is {self.num_cpus:g}, it must be above 0")
        if self.start_seconds <= 0:
            raise ConfigError(f"agl.workers.start_seconds is {self.start_seconds:g}, it must be above 0")
        if self.placement not in ("spread", "cpu_nodes") and not self.resource:
            raise ConfigError(
                f"agl.workers.placement is {self.placement!r}, it must be spread, cpu_nodes or resource:NAME"
            )

    @property
    def resource(self) -> str:
        """The NAME of `resource:NAME`, '' for another placement."""
        kind, _, name = self.placement.partition(":")
        return name.strip() if kind == "resource" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings. Field names are YAML keys (`async_` is `async`); nested classes are nested mappings."""

    agent: str | HarnessConfig = key(
        "",
        "import path of the agent: a `LitAgent`, an `@agl.rollout` function, or a factory (required); a mapping runs a "
        "program as the agent, in a sandbox",
        mapping=HarnessConfig,
    )
    reward: str | None = key(None, "import path of `f(task, execution)`, called when the agent gave no reward")
    task: str | Mapping[str, str] | None = key(
        None,
        "the agent's task: by default `prompt`, `label` and the row's metadata; a mapping `{field: source}` selects "
        "and renames fields; the import path of `f(sample)` replaces the task",
    )
    columns: tuple[str, ...] = key(
        (),
        "columns of the data rows that join the task, beside `prompt`, `label` and the metadata; slime drops them",
    )
    teacher: str | Mapping[str, str] | None = key(
        None,
        "on-policy distillation: the model that scores every Sample, as the URL of an SGLang server or router, or the "
        "name of a frozen model of `--sglang-config`; a mapping `{agent or source: URL or name}` names several; needs "
        "`--use-opd --opd-type sglang`",
    )
    teacher_seconds: float = key(600.0, "deadline for the teacher's scores of a Sample, retries included")
    model: str = key("policy", "model name shown to agents")
    resource_name: str = key(
        "main_llm", "name of the Agent Lightning resource with the endpoint, for agents that look one up by name"
    )
    templates: Mapping[str, str] | None = key(
        None,
        "prompt templates that agents get as further resources: resource name to text, or to `file:PATH`; "
        "`{field}` in a text is filled in by the agent",
    )
    image_dir: str | None = key(
        None, "folder below which agents may name images as `file://` URLs; without it such URLs are refused"
    )
    history: Literal["append", "template"] = key(
        "append",
        "if the chat template rewrites earlier turns: `append` keeps one segment as the model saw it, `template` forks",
    )
    sampling: Literal["trainer", "agent"] = key(
        "trainer", "whose temperature and top_p apply; `agent` makes logprobs off-policy for the trainer"
    )
    spans: Literal["light", "tokens"] = key(
        "light", "`tokens` writes token ids into Agent Lightning's spans for its adapters, at a cost in memory and time"
    )
    generate_returns: Literal["sample", "list"] = key(
        "sample",
        "what `slime_agl.generate.generate` returns to slime's own loop: `sample` refuses executions with several "
        "Samples, `list` returns a list for every execution, for agents that branch (slime's own dynamic filters, "
        "--group-rm and fully-async loop accept no lists)",
    )
    loss_unit: Literal["execution", "token", "segment"] | None = key(
        None,
        "what counts once in the policy's loss: each `execution` (slime's default), `token` or `segment`. slime's "
        "flags decide; with a value, flags that do something else are refused",
    )
    runners: RunnersConfig = RunnersConfig()
    store: StoreConfig = StoreConfig()
    gateway: GatewayConfig = GatewayConfig()
    tasks: TasksConfig = TasksConfig()
    train: TrainConfig = TrainConfig()
    credit: CreditConfig = CreditConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    failure: FailureConfig = FailureConfig()
    async_: AsyncConfig = AsyncConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    workers: WorkersConfig = WorkersConfig()
    sandbox: SandboxConfig = SandboxConfig()
    tables: TablesConfig = TablesConfig()
    record_dir: str | None = key(None, "directory for one file per step with every execution and its tokens")
    resume: Literal["whole", "position"] = key(
        "whole",
        "what `ResumableDataSource` resumes from: `whole` requires its own state of the step, `position` accepts "
        "slime's if there is none, without the groups that were active",
    )
    dashboard_port: int | None = key(
        None,
        "loopback port of Agent Lightning's dashboard for the store of this process; the log shows its URL with a "
        "token; null for none",
    )

    def __post_init__(self) -> None:
        if self.workers.count and not self.gateway.leads_to_workers:
            raise ConfigError(
                f"agl.gateway.public_url is {self.gateway.public_url}, agl.workers.count is {self.workers.count}: "
                "one URL cannot lead to the gateways of several workers; put {worker} or {port} where they differ, or "
                "leave it out and set agl.gateway.host if agents call from other machines"
            )
        self._check_external()
        check_teacher(self.teacher, self.teacher_seconds)
        if self.dashboard_port is not None and not 1 <= self.dashboard_port <= 65535:
            raise ConfigError(f"agl.dashboard_port is {self.dashboard_port}, it must lie between 1 and 65535")

    @property
    def external(self) -> bool:
        """The agent runs in runners of another store than this process's own."""
        return self.store.external

    def _check_external(self) -> None:
        """Raise ConfigError if a key has no meaning, or none yet, with runners that are other processes."""
        mode = self.runners.mode
        if not self.external:
            if mode == "external":
                raise ConfigError(
                    "agl.runners.mode is external, but no store is named; set agl.store.url to a store that runs, or "
                    "agl.store.serve to the host:port at which to serve one"
                )
            return
        if mode in ("async", "thread"):
            raise ConfigError(f"agl.runners.mode is {mode}, but agl.store leaves the agent to other runners; drop one")
        if self.store.serve is not None and mode != "external":
            raise ConfigError(f"agl.store.serve is {self.store.serve}; set agl.runners.mode: external with it")
        for name, value, why in (
            ("agent", self.agent, "the runners of agl.store bring the agent"),
            ("runners.max_concurrency", self.runners.max_concurrency, "as many run at a time as agl.store has runners"),
            ("workers.count", self.workers.count, "the runners of agl.store are processes already"),
            ("dashboard_port", self.dashboard_port, "the store of agl.store has a dashboard of its own"),
        ):
            if value:
                raise ConfigError(f"agl.{name} is {value}, but {why}; leave it out")

    @classmethod
    def read(cls, mapping: Any) -> Config:
        """Check and freeze the mapping.

        Raises:
            ConfigError: the mapping or the agent is missing, a key is unknown, a value has the wrong type.
        """
        if mapping is None:
            raise ConfigError(
                "no `agl:` section found in slime's arguments; put `agl: {agent: your_package.your_agent}` "
                "in a YAML file and pass it as --custom-config-path"
            )
        config = read_mapping(cls, _spelled_out(mapping), "agl")
        if not config.agent and not config.external:
            raise ConfigError(
                "agl.agent is missing; name your agent as an import path, such as `my_package.agents.solver`"
            )
        return config


def describe(cls: type = Config, prefix: str = "agl") -> list[tuple[str, str, str]]:
    """(key, default, meaning) of every configuration key, in order; the source of the guide's table."""
    rows = []
    for item in dataclasses.fields(cls):
        name = f"{prefix}.{key_of(item)}"
        if dataclasses.is_dataclass(item.default):
            rows += describe(type(item.default), name)
        else:
            value = {} if item.default is dataclasses.MISSING else item.default
            default = "null" if value is None else str(value)
            default = default.lower() if isinstance(value, bool) else default
            rows.append((name, default, item.metadata["help"]))
            if item.metadata["mapping"]:
                rows += describe(item.metadata["mapping"], name)
    return rows


def table() -> str:
    """The configuration keys as a Markdown table, for the guide."""
    rows = "".join(f"| `{name}` | `{default}` | {meaning} |\n" for name, default, meaning in describe())
    return "| key | default | meaning |\n|---|---|---|\n" + rows.replace("| `` |", "| |")


def _spelled_out(mapping: Any) -> Any:
    """Expand the short forms `failure: POLICY` and `credit: MODE`."""
    if not isinstance(mapping, Mapping):
        return mapping
    words = {name: mapping[name] for name in ("failure", "credit") if isinstance(mapping.get(name), str)}
    full = dict(mapping)
    if "failure" in words:
        full["failure"] = dict.fromkeys(("agent_error", "engine_error", "deadline"), words["failure"])
    if "credit" in words:
        full["credit"] = {"mode": words["credit"]}
    return full

"""Command lines of container engines."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Protocol

from slime_agl.errors import SandboxError
from slime_agl.sandbox.programs import ran
from slime_agl.sandbox.protocol import SandboxSpec

HOME_LABEL, DRIVER_LABEL = "slime_agl.home", "slime_agl.driver"
# Name, driver and labels of a sandbox that exists.
Found = tuple[str, str, Mapping[str, str]]


class Engine(Protocol):
    program: str

    def create(self, name: str, spec: SandboxSpec, home: str, driver: str) -> list[str]: ...

    def execute(self, name: str, cmd: str, user: str, env: Mapping[str, str], *, stdin: bool) -> list[str]: ...

    def end(self, name: str) -> list[str]: ...

    async def pid(self, name: str) -> int:
        """Raises SandboxError if it does not run."""
        ...

    async def disconnect(self, name: str) -> list[list[str]]:
        """Commands that leave it without a network."""
        ...

    async def list(self, home: str) -> Iterable[Found]: ...


class DockerLike:
    """docker, or podman, whose command line is the same but for little."""

    def __init__(self, program: str) -> None:
        self.program = program

    def create(self, name: str, spec: SandboxSpec, home: str, driver: str) -> list[str]:
        argv = [self.program, "run", "--detach", "--rm", "--init", "--name", name, "--hostname", "sandbox"]
        for label, value in {**spec.labels, HOME_LABEL: home, DRIVER_LABEL: driver}.items():
            argv += ["--label", f"{label}={value}"]
        argv += ["--security-opt", "no-new-privileges", *(() if spec.network == "open" else ("--network", "none"))]
        limits = spec.limits
        for switch, value in (
            ("--cpus", limits.cpus),
            ("--memory", f"{limits.memory_mb}m" if limits.memory_mb is not None else None),
            ("--memory-swap", f"{limits.memory_mb}m" if limits.memory_mb is not None else None),
            ("--pids-limit", limits.processes),
        ):
            if value is not None:
                argv += [switch, str(value)]
        for inside, outside in spec.mounts.items():
            argv += ["--volume", f"{outside.resolve()}:{inside}:ro"]
        for inside, outside in spec.shared.items():
            argv += ["--volume", f"{outside.resolve()}:{inside}"]
        return [*argv, "--entrypoint", "sleep", spec.image, str(int(spec.ttl_seconds) + 1)]

    def execute(self, name: str, cmd: str, user: str, env: Mapping[str, str], *, stdin: bool) -> list[str]:
        argv = [self.program, "exec", "--user", user, *(("--interactive",) if stdin else ())]
        for variable, value in env.items():
            argv += ["--env", f"{variable}={value}"]
        return [*argv, name, "sh", "-c", cmd]

    def end(self, name: str) -> list[str]:
        return [
            self.program,
            "rm",
            "--force",
            "--volumes",
            *(("--time", "0") if self.program == "podman" else ()),
            name,
        ]

    async def pid(self, name: str) -> int:
        pid = int(await self._inspect(name, "{{.State.Pid}}"))
        if pid <= 0:
            raise SandboxError(f"the container {name} does not run")
        return pid

    async def disconnect(self, name: str) -> list[list[str]]:
        networks = await self._inspect(name, "{{range $name, $_ := .NetworkSettings.Networks}}{{$name}} {{end}}")
        return [[self.program, "network", "disconnect", "--force", network, name] for network in networks.split()]

    async def list(self, home: str) -> list[Found]:
        ids = (await ran([self.program, "ps", "-aq", "--filter", f"label={HOME_LABEL}={home}"])).split()
        found = []
        for name in ids:
            labels = json.loads(await self._inspect(name, "{{json .Config.Labels}}"))
            found.append((name, labels.get(DRIVER_LABEL, ""), labels))
        return found

    async def _inspect(self, name: str, form: str) -> str:
        return (await ran([self.program, "container", "inspect", "--format", form, name])).strip()


class Apptainer:
    """Instances of apptainer, which has no labels: the name holds the driver. Its commands run as this user."""

    program = "apptainer"

    def create(self, name: str, spec: SandboxSpec, home: str, driver: str) -> list[str]:
        argv = [self.program, "instance", "start", "--containall", "--cleanenv", "--writable-tmpfs", "--no-privs"]
        argv += () if spec.network == "open" else ("--net", "--network", "none")
        if spec.limits.memory_mb is not None:
            argv += ["--memory", f"{spec.limits.memory_mb}M"]
        if spec.limits.processes is not None:
            argv += ["--pids-limit", str(spec.limits.processes)]
        if spec.limits.cpus is not None:
            argv += ["--cpus", str(spec.limits.cpus)]
        for inside, outside in spec.mounts.items():
            argv += ["--bind", f"{outside.resolve()}:{inside}:ro"]
        for inside, outside in spec.shared.items():
            argv += ["--bind", f"{outside.resolve()}:{inside}"]
        return [*argv, spec.image, name]

    def execute(self, name: str, cmd: str, user: str, env: Mapping[str, str], *, stdin: bool) -> list[str]:
        argv = [self.program, "exec", "--cleanenv"]
        for variable, value in env.items():
            argv += ["--env", f"{variable}={value}"]
        return [*argv, f"instance://{name}", "sh", "-c", cmd]

    def end(self, name: str) -> list[str]:
        return [self.program, "instance", "stop", "--signal", "SIGKILL", name]

    async def pid(self, name: str) -> int:
        for instance in await self._instances():
            if instance["instance"] == name:
                return int(instance["pid"])
        raise SandboxError(f"the instance {name} does not run")

    async def disconnect(self, name: str) -> list[list[str]]:
        raise SandboxError("an apptainer sandbox keeps the network it was created with; install into a shared folder")

    async def list(self, home: str) -> list[Found]:
        names = [instance["instance"] for instance in await self._instances()]
        ours = [name for name in names if name.startswith("slime_agl-")]
        return [(name, name.removeprefix("slime_agl-").rpartition("-")[0], {}) for name in ours]

    async def _instances(self) -> list[dict[str, str]]:
        return json.loads(await ran([self.program, "instance", "list", "--json"]))["instances"]


ENGINES = {
    "docker": functools.partial(DockerLike, "docker"),
    "podman": functools.partial(DockerLike, "podman"),
    "apptainer": Apptainer,
}

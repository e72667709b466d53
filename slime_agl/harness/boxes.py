"""Sandboxes with a task's environment in them.

Every absolute path in a shell line is written below $SANDBOX_ROOT, which the `local` backend sets: it has no file
system of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from slime_agl.errors import ConfigError, SandboxError
from slime_agl.harness.dockerfile import Copy, Run
from slime_agl.harness.places import LOCAL, Places
from slime_agl.harness.task import Task
from slime_agl.sandbox.lease import Lease as Box
from slime_agl.sandbox.protocol import Network, SandboxSpec

LABEL = "slime_agl"
SHOWN = 2000


def rooted(path: str) -> str:
    """An absolute path for a shell line, quoted."""
    return '"${SANDBOX_ROOT:-}"' + shlex.quote(path)


@asynccontextmanager
async def box_for(
    places: Places,
    task: Task,
    *,
    network: Network,
    labels: Mapping[str, str],
    endpoint: str = "",
    install: str = "",
    mounts: Mapping[str, Path] | None = None,
) -> AsyncIterator[Box]:
    """Create a sandbox with the task's environment, and end it with everything in it.

    network: once the environment stands; images are completed with the network open. install: shell lines that install
    the program. endpoint, mounts: see SandboxSpec.

    Raises:
        ConfigError: the backend cannot make this environment.
        SandboxError: it cannot be created, or a step of the environment fails; quotes its output.
    """
    if places.name == LOCAL and any(isinstance(step, Run) for step in task.recipe.steps):
        raise ConfigError(
            f"the Dockerfile of {task.name} has RUN, and `local` has no file system of its own to run it on; set "
            "agl.sandbox.backend to bwrap or to one with images"
        )
    builds = places.has_images and (bool(install) or any(isinstance(step, Run) for step in task.recipe.steps))
    spec = SandboxSpec(
        image=task.recipe.image if places.has_images else "",
        workdir=task.workdir,
        labels={LABEL: "harness", **labels},
        network="open" if builds and network != "open" else network,
        endpoint=endpoint,
        mounts=mounts or {},
        env=task.recipe.env,
        limits=task.limits,
    )
    async with places.sandbox(spec) as box:
        for step in task.recipe.steps:
            if isinstance(step, Copy):
                await box.upload(step.source, step.target)
            else:
                await checked(box, f"cd {rooted(step.workdir)} && {step.command}", task.build_seconds, "RUN")
        for path, text in task.files.items():
            await box.write_file(f"{task.workdir}/{path}", text)
        if task.setup:
            await checked(box, f"cd {rooted(task.workdir)} && {task.setup}", task.build_seconds, "setup")
        if install:
            await checked(box, install, task.build_seconds, "installation")
        if spec.network != network:
            await box.set_network(network)
        yield box


async def checked(box: Box, command: str, seconds: float, what: str) -> str:
    """Run a command of ours; return its output.

    Raises:
        SandboxError: it failed; names `what`, the status and the end of its output.
    """
    status, out, err = await box.exec(command, timeout=int(seconds) + 1)
    if status:
        raise SandboxError(f"{what} in sandbox {box.sandbox_id} ended with status {status}: {(err or out)[-SHOWN:]}")
    return out

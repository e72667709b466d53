"""One execution of a program: create, install, run, collect, seal, grade. Each sandbox ends with its phase."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from slime_agl.errors import SandboxError, SandboxExhausted
from slime_agl.harness.boxes import Box, box_for, rooted
from slime_agl.harness.collect import Work, collect, mark
from slime_agl.harness.environment import DEFAULT_CONTEXT, DEFAULT_OUTPUT, Access, contract, own_variables
from slime_agl.harness.grade import Grade, grade
from slime_agl.harness.install import Installed, bin_inside, script_inside
from slime_agl.harness.phases import Phases
from slime_agl.harness.places import Places
from slime_agl.harness.program import OURS, Program, filled
from slime_agl.harness.task import Task
from slime_agl.lightning import own_attempt
from slime_agl.sandbox.protocol import Process

logger = logging.getLogger(__name__)

LAUNCH = "/slime_agl/launch"
LOG_BYTES = 64 * 1024
AGAIN_SECONDS = 1.0

Ended = Literal["", "timeout", "exit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run. access: how the program reaches the model, from this machine; its endpoint ends in /v1.

    seconds: deadline of the program. events: it may post its reward. env: `agl.agent.env`. labels: of its sandboxes.
    """

    task: Task
    program: Program
    access: Access
    seconds: float
    labels: Mapping[str, str]
    env: Mapping[str, str]
    events: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended. ended: '' for status 0. status: None at its deadline. meaning: see Program.meaning."""

    ended: Ended
    status: int | None
    meaning: str
    work: Work
    log: str

    @property
    def changed(self) -> int:
        return self.work.changed


async def run_program(places: Places, order: Order, phases: Phases, seal: Callable[[], Awaitable[object]]) -> Ran:
    """Run a program on a task to its end or its deadline. Nothing of it is left when this returns.

    seal: refuses its model calls from now on; called when it has ended and before its work is looked at.

    Raises:
        SandboxError: a sandbox could not be created, filled, reached or read; the program could not be run.
    """
    task, program = order.task, order.program
    with phases.phase("install", f"installing {program.name} {program.version}".rstrip()):
        installed = Installed(bin_inside(program)) if places.has_images else await places.installer.install(program)
    opening = box_for(
        places,
        task,
        network="gateway",
        labels=order.labels,
        endpoint=order.access.endpoint,
        install=script_inside(program) if places.has_images or not program.registry else "",
        mounts=installed.mounts,
    )
    with phases.phase("create", f"creating a sandbox for {task.name}"):
        box = await opening.__aenter__()
    try:
        process = await _start(box, order, installed)
        with phases.phase("run", f"{program.name} works on {task.name}"):
            status = await _ended(process, order.seconds)
        with phases.phase("seal"):
            await seal()
            await process.kill()
        with phases.phase("collect"):
            log = await process.output(LOG_BYTES)
            meaning = "" if status is None else program.meaning(status)
            if meaning in OURS:
                raise SandboxError(f"{program.name} ended with status {status} ({meaning}): {log[-2000:]}")
            work = await collect(box, task.workdir)
    except BaseException as error:
        await opening.__aexit__(type(error), error, error.__traceback__)
        raise
    await opening.__aexit__(None, None, None)
    ended: Ended = "timeout" if status is None else "exit" if status else ""
    return Ran(ended=ended, status=status, meaning=meaning, work=work, log=log)


async def grade_again(
    places: Places, task: Task, work: Work, labels: Mapping[str, str], phases: Phases, retries: int
) -> Grade:
    """Grade work, in another fresh sandbox if the first ones fail.

    Raises:
        SandboxExhausted: all of them failed, or the tests did not end in time.
    """
    for left in range(retries, -1, -1):
        try:
            with phases.phase("grade", f"grading {task.name}"):
                return await grade(places, task, work, labels)
        except SandboxError as error:
            phases.count("grader_failures")
            if isinstance(error, SandboxExhausted):
                raise
            if not left:
                raise SandboxExhausted(f"{task.name} was not graded in {retries + 1} tries: {error}") from error
            logger.warning("grading %s failed, %d tries are left: %s", task.name, left, error)
            await asyncio.sleep(AGAIN_SECONDS)
    raise AssertionError("the loop returns or raises")


async def _start(box: Box, order: Order, installed: Installed) -> Process:
    access = replace(order.access, endpoint=box.endpoint or order.access.endpoint)
    given = contract(access, order.task.fields, events=order.events)
    known = given | {"AGL_CONTEXT": str(DEFAULT_CONTEXT), "AGL_OUTPUT": str(DEFAULT_OUTPUT)}
    for number, text in enumerate(order.program.files.values()):
        await box.write_file(f"{LAUNCH}/file{number}", filled(text, known))
    await box.write_file(f"{LAUNCH}/prompt", order.task.instruction)
    await box.write_file(f"{LAUNCH}/run", launch_script(order.program, order.task.workdir, installed))
    await mark(box, order.task.workdir)
    more = {name: filled(value, known) for name, value in order.program.env.items()}
    env = {**given, **more, **own_variables(order.env, order.task.fields)}
    return await box.start(f"exec bash {rooted(f'{LAUNCH}/run')}", env=env)


def launch_script(program: Program, workdir: str, installed: Installed) -> str:
    """Shell lines that put a program's files into the home folder and become the program."""
    lines = [f"launch={rooted(LAUNCH)}", 'export AGL_PROMPT_FILE="$launch/prompt"', 'export HOME="${HOME:-/root}"']
    if installed.bin:
        lines.append(f'export PATH="{installed.bin}:$PATH"')
    for number, path in enumerate(program.files):
        lines += [f'mkdir -p "$(dirname "$HOME/{path}")"', f'cp "$launch/file{number}" "$HOME/{path}"']
    return "\n".join([*lines, f"cd {rooted(workdir)}", program.command, ""])


async def _ended(process: Process, seconds: float) -> int | None:
    """Wait for a program; return its status, or None at the deadline, which stops while the attempt is parked."""
    waiting = asyncio.ensure_future(process.wait())
    late = asyncio.ensure_future(own_attempt.sleep(seconds))
    try:
        await asyncio.wait({waiting, late}, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        for task in (waiting, late):
            task.cancel()
        await asyncio.gather(waiting, late, return_exceptions=True)

"""Run the command line programs of container engines, with their output bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from typing import BinaryIO

from slime_agl.errors import SandboxError
from slime_agl.sandbox.inside.output import OUTPUT_BYTES, Output
from slime_agl.sandbox.inside.wire import CHUNK


class Program:
    """A started program. out, err: what it writes; the same if they are merged."""

    def __init__(self, process: asyncio.subprocess.Process, *, merged: bool, most: int) -> None:
        self._process = process
        self.out = Output(most)
        self.err = self.out if merged else Output()
        self._pumps = [
            asyncio.ensure_future(_pump(stream, output))
            for stream, output in ((process.stdout, self.out), (process.stderr, self.err))
            if stream is not None
        ]
        self._ended = asyncio.ensure_future(self._wait())

    @classmethod
    async def start(
        cls, argv: Sequence[str], stdin: BinaryIO | None = None, *, merged: bool = False, most: int = OUTPUT_BYTES
    ) -> Program:
        """Start a program. most: bytes of its output that are kept.

        Raises:
            SandboxError: there is no such program.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=stdin or subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            )
        except OSError as error:
            raise SandboxError(f"cannot run {argv[0]}: {error.strerror or error}; is it installed?") from error
        return cls(process, merged=merged, most=most)

    async def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit status, None at the timeout."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._ended), timeout)
        except TimeoutError:
            return None

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await asyncio.shield(self._ended)

    async def _wait(self) -> int:
        status = await self._process.wait()
        await asyncio.gather(*self._pumps)
        return status if status >= 0 else 128 - status


async def ran(argv: Sequence[str], *, stdin: BinaryIO | None = None, timeout: float = 60.0) -> str:
    """Run a program to its end and return what it wrote.

    Waits for it also when cancelled, so that what it makes can be removed afterwards.

    Raises:
        SandboxError: it failed, or did not end.
    """
    program = await Program.start(argv, stdin)
    waiting = asyncio.ensure_future(program.wait(timeout))
    try:
        status = await asyncio.shield(waiting)
    except asyncio.CancelledError:
        await asyncio.wait([waiting])
        if waiting.result() is None:
            await program.kill()
        raise
    if status is None:
        await program.kill()
        raise SandboxError(f"`{' '.join(argv[:3])}` did not end within {timeout:g} s")
    if status:
        said = program.err.text().decode(errors="replace").strip()
        raise SandboxError(f"`{' '.join(argv[:3])}` ended with status {status}: {said[-600:]}")
    return program.out.text().decode(errors="replace")


async def _pump(stream: asyncio.StreamReader, output: Output) -> None:
    while data := await stream.read(CHUNK):
        output.add(data)


def spooled(data: bytes) -> BinaryIO:
    """A file with some bytes, for stdin."""
    file = tempfile.TemporaryFile()
    file.write(data)
    file.flush()
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    return file

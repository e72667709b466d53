"""Run commands in a sandbox for the driver at the other end of a socket: `main FD`.

The keeper is the parent of everything that runs in its sandbox. When the driver closes the socket or dies, it ends all
of it and exits. In a namespace of its own it is process 1, which nothing inside can signal or trace, and whose end ends
the rest. This folder imports only the standard library, and of that little: it is all of this package that a namespace
sees, and it starts once per sandbox.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import signal
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any

from slime_agl.sandbox.inside.files import Tree
from slime_agl.sandbox.inside.kernel import (
    LINUX,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    control_process,
    filter_calls,
)
from slime_agl.sandbox.inside.output import OUTPUT_BYTES, Job, Output
from slime_agl.sandbox.inside.processes import descendants, end_all, marked
from slime_agl.sandbox.inside.wire import (
    ANSWER,
    CHUNK,
    DONE,
    ENTRY,
    FAILED,
    JOB,
    JOB_ENDED,
    LENGTH,
    LINK,
    WITH_FD,
    passed,
    rights,
)

NOT_STARTED = 126
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CHANGED_SIGNALS = (*IGNORED_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)


class Keeper:
    """Serves one driver until it closes the socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._tree = Tree("/")
        self._alone = os.getpid() == 1
        # Sandboxes without a process namespace see each other's jobs.
        self._name = os.urandom(6).hex()
        self._jobs: dict[int, Job] = {}
        self._pipes: dict[int, tuple[Job | None, Output]] = {}
        self._poll = select.poll()
        self._read = bytearray()
        self._fds: list[int] = []
        self._limits: dict[str, int] = {}

    def serve(self) -> None:
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for fd in (woken, self._control.fileno()):
            self._poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == woken:
                    os.read(woken, CHUNK)
                    self._reap()
                elif fd in self._pipes:
                    self._pump(fd)
                elif fd == self._control.fileno() and not self._receive():
                    return

    def end(self) -> None:
        """End everything that runs here."""
        if LINUX and not self._alone:
            end_all(lambda: descendants({os.getpid()}) - {os.getpid()})
        for job in self._jobs.values():
            if job.status is None and not LINUX:
                os.killpg(job.pid, signal.SIGKILL)

    def _receive(self) -> bool:
        """Read and do requests. False at the end of the socket."""
        try:
            data, extra, _, _ = self._control.recvmsg(CHUNK, socket.CMSG_SPACE(4))
        except ConnectionError:
            return False
        self._fds += passed(extra)
        self._read += data
        while len(self._read) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._read)
            if len(self._read) < LENGTH.size + size:
                break
            request = marshal.loads(bytes(self._read[LENGTH.size : LENGTH.size + size]))
            del self._read[: LENGTH.size + size]
            self._do(request)
        return bool(data)

    def _do(self, request: dict[str, Any]) -> None:
        number = request.pop("number")
        if request.pop("with_fd"):
            request["fd"] = self._fds.pop(0)
            os.set_inheritable(request["fd"], False)
        try:
            getattr(self, f"_op_{request.pop('op')}")(number, **request)
        except Exception as error:  # the boundary to the driver, which raises it there
            self._answer(number, FAILED, out=f"{type(error).__name__}: {error}".encode(errors="replace"))

    def _answer(
        self, number: int, kind: int = DONE, status: int = 0, out: bytes = b"", err: bytes = b"", fd: int = -1
    ) -> None:
        head = ANSWER.pack(number, kind, status, len(out), len(err))
        try:
            self._control.sendmsg([head], rights(fd))
            self._control.sendall(out + err)
        except (BrokenPipeError, ConnectionError):
            pass  # the loop notices

    def _op_boot(
        self, number: int, *, root: str, links: dict[str, tuple[str, bool]], workdir: str, limits: dict[str, int]
    ) -> None:
        self._tree, self._limits = Tree(root, links), limits
        if LINUX:
            control_process(PR_SET_CHILD_SUBREAPER, 1)
            _write("/proc/self/oom_score_adj", "1000")  # short of memory, the kernel ends this before the driver
            if self._alone:
                control_process(PR_SET_DUMPABLE, 0)
        os.close(self._tree.folder(workdir))
        self._answer(number)

    def _op_run(
        self, number: int, *, cmd: str, env: dict[str, str], cwd: str, detached: bool, program: bytes | None
    ) -> None:
        out, to_out = os.pipe()
        err, to_err = (-1, to_out) if detached else os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            # The sandbox is full: the fault of what runs in it, not of who runs it.
            for fd in {out, to_out, err, to_err} - {-1}:
                os.close(fd)
            said = f"sandbox: no process can be started: {error.strerror}\n".encode()
            self._answer(number, status=NOT_STARTED, err=said)
            if detached:
                full = self._jobs[number] = Job(number, -1, detached)
                full.status = NOT_STARTED
                full.out.add(said)
                self._answer(number, JOB_ENDED, NOT_STARTED)
            return
        if pid == 0:
            self._become(cmd, {**env, JOB: f"{self._name}.{number}"}, cwd, to_out, to_err, program)
        job = self._jobs[number] = Job(number, pid, detached)
        for fd, output in ((out, job.out), (err, job.err)):
            if fd >= 0:
                os.set_blocking(fd, False)
                self._pipes[fd] = (job, output)
                self._poll.register(fd, select.POLLIN)
        for fd in {to_out, to_err}:
            os.close(fd)
        if detached:
            self._answer(number)

    def _become(self, cmd: str, env: dict[str, str], cwd: str, out: int, err: int, program: bytes | None) -> None:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in CHANGED_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            if self._alone:
                os.chdir(cwd)
            else:
                os.fchdir(self._tree.open(cwd, os.O_RDONLY | os.O_DIRECTORY))
            for name, value in self._limits.items():
                which = getattr(resource, name)
                hard = resource.getrlimit(which)[1]
                value = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(which, (value, value))
            if program:
                filter_calls(program)
            shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
            os.execve(shell, [shell, "-c", cmd], env)
        except BaseException as error:  # nothing of the keeper may run on in this copy
            os.write(2, f"sandbox: {error}\n".encode(errors="replace"))
        finally:
            os._exit(NOT_STARTED)

    def _pump(self, fd: int, most: int = CHUNK) -> None:
        job, output = self._pipes[fd]
        try:
            while most > 0 and (data := os.read(fd, CHUNK)):
                most -= len(data)
                if job is not None:
                    output.add(data)
            if most > 0:
                self._poll.unregister(fd)
                os.close(fd)
                del self._pipes[fd]
        except BlockingIOError:
            pass

    def _reap(self) -> None:
        running = {job.pid: job for job in self._jobs.values() if job.status is None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in running:
                self._ended(running[pid], os.waitstatus_to_exitcode(status))

    def _ended(self, job: Job, status: int) -> None:
        job.status = status if status >= 0 else 128 - status
        for fd in [fd for fd, (owner, _) in self._pipes.items() if owner is job]:
            self._pump(fd, most=OUTPUT_BYTES)
            if fd in self._pipes and not job.detached:
                # A process that the command left behind holds the pipe: read on, so that it is not blocked or killed.
                self._pipes[fd] = (None, job.out)
        if job.detached:
            self._answer(job.number, JOB_ENDED, job.status)
        else:
            del self._jobs[job.number]
            self._answer(job.number, DONE, job.status, job.out.text(), job.err.text())

    def _op_output(self, number: int, *, job: int, most: int) -> None:
        held = self._jobs[job]
        for fd in [fd for fd, (owner, _) in self._pipes.items() if owner is held]:
            self._pump(fd, most=OUTPUT_BYTES)
        self._answer(number, out=held.out.text()[-most:] if most else b"")

    def _op_kill(self, number: int, *, job: int) -> None:
        held = self._jobs.get(job)
        root = {held.pid} if held is not None and held.status is None else set()
        mark = f"{JOB}={self._name}.{job}".encode() + b"\0"
        done = end_all(lambda: (descendants(root) | marked(mark)) - {os.getpid()}) if LINUX else True
        if not LINUX and root:
            os.killpg(min(root), signal.SIGKILL)
        self._reap()
        self._answer(number, status=0 if done else 1)

    def _op_put(self, number: int, *, path: str, fd: int) -> None:
        with open(fd, "rb") as stream:
            while head := stream.read(ENTRY.size):
                kind, mode, named, size = ENTRY.unpack(head)
                name = os.fsdecode(stream.read(named))
                target = stream.read(size) if kind == LINK else b""
                self._tree.entry(f"{path.rstrip('/')}/{name}".rstrip("/"), kind, mode, _copier(stream, size), target)
        self._answer(number)

    def _op_read(self, number: int, *, path: str) -> None:
        try:
            fd = self._tree.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return self._answer(number)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            self._answer(number, WITH_FD, fd=fd)
        else:
            self._answer(number)
        os.close(fd)

    def _op_listen(self, number: int, *, port: int) -> None:
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", port))
            listening.listen(128)
            self._answer(number, WITH_FD, fd=listening.fileno())


def _copier(stream: Any, size: int) -> Callable[[int], None]:
    def copy(fd: int) -> None:
        left = size
        while left:
            data = stream.read(min(left, 1 << 20))
            if not data:
                raise EOFError("the stream of files ended early")
            left -= len(data)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]

    return copy


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        pass


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as control:
        control.set_inheritable(False)
        keeper = Keeper(control)
        try:
            keeper.serve()
        finally:
            keeper.end()


if __name__ == "__main__":
    main()

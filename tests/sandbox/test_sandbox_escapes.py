"""What commands in an isolated sandbox try, and do not manage."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sandbox_helpers import made

from slime_agl.errors import SandboxError
from slime_agl.sandbox.channel import Channel
from slime_agl.sandbox.kept import KeptBackend
from slime_agl.sandbox.protocol import Limits, Sandbox, SandboxSpec

CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")


@pytest.fixture
async def isolating(tmp_path: Path) -> AsyncIterator[KeptBackend]:
    backend = made("bwrap", tmp_path)
    yield backend
    await backend.close()


@pytest.fixture
async def box(isolating: KeptBackend) -> AsyncIterator[Sandbox]:
    async with isolating.sandbox(SandboxSpec()) as box:
        yield box


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A server of this machine, at every address that it has."""
    with socket.create_server(("0.0.0.0", 0)) as listening:
        yield listening


async def python(box: Sandbox, code: str) -> str:
    await box.write_file("/tmp/code.py", code)
    status, out, err = await box.exec("python3 /tmp/code.py", timeout=60)
    assert status == 0, err
    return out.strip()


CONNECT = """
import socket, sys
for host in {hosts!r}:
    try:
        socket.create_connection((host, {port}), timeout=5).close()
        print("reached", host)
    except OSError:
        pass
"""


async def test_no_address_is_reachable(box: Sandbox, listening: socket.socket):
    own = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    hosts = ["127.0.0.1", "localhost", "0.0.0.0", *own]
    for host in own | {"127.0.0.1"}:
        with socket.create_connection((host, listening.getsockname()[1]), timeout=5):
            pass  # the server is there
    assert await python(box, CONNECT.format(hosts=hosts, port=listening.getsockname()[1])) == ""
    assert await python(box, CONNECT.format(hosts=["1.1.1.1", "8.8.8.8"], port=53)) == ""
    assert await python(box, "import socket; print([name for _, name in socket.if_nameindex()])") == "['lo']"


# AF_VSOCK, AF_PACKET, AF_ALG, AF_BLUETOOTH, AF_TIPC, AF_CAN
@pytest.mark.parametrize("family", [40, 17, 38, 31, 30, 29])
async def test_what_a_network_namespace_does_not_isolate_cannot_be_opened(box: Sandbox, family: int):
    code = """
import socket
for kind in (1, 2, 3, 5):
    for make in (socket.socket, socket.socketpair):
        try: make(FAMILY, kind); print("opened", kind)
        except OSError as error: assert error.errno == 97, error
""".replace("FAMILY", str(family))
    assert await python(box, code) == ""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
async def test_system_calls_that_reach_past_namespaces_are_refused(box: Sandbox):
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, SIGCHLD = 0x10000000, 17
calls = {"unshare": (272, 0), "io_uring_setup": (425, 0), "clone3": (435, 0), "bpf": (321, 0), "keyctl": (250, 0),
         "clone": (56, CLONE_NEWUSER | SIGCHLD)}
for name, (number, first) in calls.items():
    assert libc.syscall(number, first, 0, 0, 0, 0) == -1 and ctypes.get_errno() in (1, 38), name
"""
    assert await python(box, code) == ""
    for command in ("unshare -Ur true", "unshare -n true", "mount -t tmpfs none /mnt", "mount -o remount,rw /usr"):
        assert (await box.exec(command))[0] != 0, command


async def test_the_hosts_files_are_not_there(box: Sandbox, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    hidden = ("/etc/shadow", "/root/.ssh", "/root/.bashrc", "/sys/kernel", "/var/run", "/var/log")
    for path in (str(secret), __file__, str(tmp_path), *hidden):
        assert "No such file" in (await box.exec(f"ls {path}"))[2], path
        assert await box.read_file(path) == ""
    assert (await box.exec("ls -A /home /srv /mnt /media 2>/dev/null"))[1].split() == ["/home:", "agent"]
    seen = (await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))[1]
    assert "pytest" not in seen and "keeper" in seen, "only its own processes"


async def test_the_hosts_programs_cannot_be_changed(box: Sandbox, isolating: KeptBackend, tmp_path: Path):
    for path in ("/usr/bin/evil", "/bin/evil", "/etc/ssl/evil", "/.agl/slime_agl/sandbox/inside/evil", "/dev/evil"):
        assert (await box.exec(f"touch {path}"))[0] != 0, path
        assert not os.path.lexists(path)
        with pytest.raises(SandboxError):
            await box.write_file(path, "x")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    spec = SandboxSpec(mounts={"/opt/kept": tmp_path / "kept"}, workdir="/app")
    async with isolating.sandbox(spec) as mounted:
        assert await mounted.read_file("/opt/kept/file") == "kept"
        attempts = "cd /opt/kept; echo x > file; echo x >> new; rm -f file; chmod 777 . file; mv file other; umount ."
        await mounted.exec(f"{attempts}; true")
        for call in (mounted.write_file("/opt/kept/file", "x"), mounted.upload(Path(__file__), "/opt/kept/file")):
            with pytest.raises(SandboxError, match="Read-only"):
                await call
    assert {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()} == {"file": "kept"}


async def test_what_is_installed_in_a_shared_folder_others_can_only_read(isolating: KeptBackend, tmp_path: Path):
    async with isolating.sandbox(SandboxSpec(network="open", shared={"/opt/tool": tmp_path})) as installing:
        assert (await installing.exec("echo 'echo installed' > /opt/tool/run; chmod +x /opt/tool/run"))[0] == 0
        with pytest.raises(SandboxError, match="from open to none"):
            await installing.set_network("none")
    async with isolating.sandbox(SandboxSpec(mounts={"/opt/tool": tmp_path})) as box:
        assert (await box.exec("/opt/tool/run"))[1] == "installed\n"
        assert (await box.exec("rm /opt/tool/run"))[0] != 0


async def test_the_kernels_settings_cannot_be_written(box: Sandbox):
    """As root's number outside, core_pattern would name a program that the host's kernel runs as root."""
    before = CORE_PATTERN.read_text()
    try:
        assert (await box.exec("echo '|/tmp/evil' > /proc/sys/kernel/core_pattern"))[0] != 0
    finally:
        if CORE_PATTERN.read_text() != before:
            CORE_PATTERN.write_text(before)
            pytest.fail("a program of a sandbox would have been run by the host's kernel")
    found = await box.exec("find /proc/sys /proc/irq /proc/bus /proc/fs /proc/sysrq-trigger -type f -writable 2>&-")
    assert found[1] == ""


async def test_nobody_inside_can_kill_or_trace_the_keeper(box: Sandbox):
    victim = await box.start("sleep 600")
    await box.exec("kill -9 1; kill -9 -1")
    assert await victim.wait() == 137
    for command in ("cat /proc/1/environ", "cat /proc/1/maps", "readlink /proc/1/fd/*", "echo > /proc/1/fd/3"):
        status, out, _ = await box.exec(command)
        assert status != 0 and out == "", command
    code = """
import ctypes
print(ctypes.CDLL(None, use_errno=True).ptrace(16, 1, 0, 0))
try: open("/proc/1/mem", "r+b"); print("opened")
except OSError: pass
"""
    assert await python(box, code) == "-1"
    assert await box.is_alive()


async def test_commands_hold_no_descriptor_of_the_driver(box: Sandbox):
    assert (await box.exec("ls /proc/self/fd | tr '\\n' ' '"))[1] == "0 1 2 3 ", "3 is the listing itself"


async def test_two_sandboxes_share_neither_processes_nor_loopback_nor_memory(isolating: KeptBackend):
    async with isolating.sandbox(SandboxSpec()) as one, isolating.sandbox(SandboxSpec()) as other:
        await one.write_file("/app/serve.py", "import socket; socket.create_server(('127.0.0.1', 7777)).accept()")
        await one.start("touch /dev/shm/x /tmp/x; exec python3 serve.py")
        while (await one.exec("python3 -c \"import socket; socket.create_connection(('127.0.0.1', 7777))\""))[0]:
            await asyncio.sleep(0.01)
        assert await python(other, CONNECT.format(hosts=["127.0.0.1"], port=7777)) == ""
        assert (await other.exec("ls /dev/shm/* /tmp/x; cat /proc/[0-9]*/cmdline | grep -a serve.p[y]"))[1] == ""


async def test_memory_and_storage_are_limited(isolating: KeptBackend):
    async with isolating.sandbox(SandboxSpec(limits=Limits(memory_mb=200, storage_mb=20))) as box:
        status, _, _ = await box.exec("python3 -c \"x = b'x' * (400 << 20)\"", timeout=60)
        assert status not in (0, 124)
        assert (await box.exec("head -c 30000000 /dev/zero > big"))[0] != 0
        assert (await box.exec("rm big; for n in $(seq 10); do head -c 3000000 /dev/zero > $n || exit 1; done"))[0] == 1
        assert (await box.exec("rm *; echo still; cat /etc/hosts > x"))[:2] == (0, "still\n")


async def test_shared_memory_is_limited(box: Sandbox):
    assert (await box.exec("head -c 300000000 /dev/zero > /dev/shm/x", timeout=60))[0] != 0


async def test_links_lead_nowhere_outside(kept: KeptBackend, tmp_path: Path):
    """Also for `local`, where the driver acts on paths that commands prepared."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("of the host")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("uploaded")
    victim = tmp_path / "victim"
    async with kept.sandbox(SandboxSpec()) as box:
        await box.exec(f"ln -s {victim}/file link; ln -s {victim} folder; ln -s ../../../../../../..{victim} up")
        for path in ("/app/link", "/app/folder/file", "/app/up/file"):
            assert await box.read_file(path) == "", path
        await box.write_file("/app/link", "written")
        assert await box.read_file("/app/link") == "written"
        for target in ("/app/folder", "/app/up"):
            for call in (box.write_file(f"{target}/file", "x"), box.upload(tree, target)):
                try:
                    await call
                except SandboxError:
                    pass
        assert await box.read_file("/proc/self/environ") == "" or kept.isolates
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"file": "of the host"}


async def test_reading_what_is_no_file_does_not_block(kept: KeptBackend):
    async with kept.sandbox(SandboxSpec()) as box:
        await box.exec("mkfifo fifo; ln -s /dev/zero zero; ln -s loop loop; touch closed; chmod 0 closed")
        for name in ("fifo", "zero", "loop"):
            assert await box.read_file(f"/app/{name}") == ""
        await box.write_file("/app/fifo", "a file now")
        assert await box.read_file("/app/fifo") == "a file now"


async def test_a_file_larger_than_memory_is_read_in_part(kept: KeptBackend):
    async with kept.sandbox(SandboxSpec()) as box:
        await box.exec("truncate -s 100G sparse")
        assert len(await box.read_file("/app/sparse")) == 64 << 20


async def test_without_a_network_local_commands_make_no_socket(tmp_path: Path):
    backend = made("local", tmp_path)
    async with backend.sandbox(SandboxSpec()) as box:
        await box.write_file("/app/child.py", "import os, sys; os.system(sys.executable + ' code.py')")
        await box.write_file("/app/code.py", "import socket; socket.socket()")
        for name in ("code.py", "child.py"):
            assert "PermissionError" in (await box.exec(f"python3 {name}"))[2]
        await box.set_network("open")
        assert (await box.exec("python3 code.py"))[0] == 0
    await backend.close()


async def test_a_keeper_that_was_taken_over_cannot_harm_the_driver():
    for lie in (b"\xff" * 100, b"\0\0\0\1\2\0\0\0\0\0\0\0\0\0\0\0\0", b"\0\0\0\1\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0"):
        ours, theirs = socket.socketpair()
        channel = Channel(ours, "box")
        _, answer = channel.send("read", path="/x")
        before = len(os.listdir("/proc/self/fd"))
        with theirs, open("/dev/null") as null:
            socket.send_fds(theirs, [lie], [null.fileno()] * 3)
            try:
                got = await answer
                assert got.fd >= 0 and lie[4] == 2
                os.close(got.fd)
            except SandboxError as error:
                assert "took over" in str(error) or "ended" in str(error)
            theirs.shutdown(socket.SHUT_RDWR)
            await channel.ended
        assert len(os.listdir("/proc/self/fd")) <= before - 2


async def test_an_ended_local_keeper_is_noticed_and_its_commands_are_ended(tmp_path: Path, processes):
    backend, seconds = made("local", tmp_path), f"34{secrets.randbelow(10**6)}"
    async with backend.sandbox(SandboxSpec()) as box:
        process = await box.start(f"(setsid sleep {seconds} &); kill -9 $PPID; sleep {seconds}")
        with pytest.raises(SandboxError, match=box.sandbox_id):
            await process.wait()
        assert not await box.is_alive()
    assert processes(f"sleep {seconds}") == set()
    await backend.close()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="starts a driver as another user, as root")
async def test_an_unprivileged_user_is_contained_alike(tmp_path: Path):
    script = Path(__file__).parent / "as_nobody.py"
    python = "/usr/bin/python3"
    if not os.path.exists(python):
        pytest.skip(f"{python} is missing, and this interpreter may be root's alone")
    made("bwrap", tmp_path)
    folder = Path(f"/tmp/slime_agl_nobody_{secrets.token_hex(4)}")
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    try:
        driver = await asyncio.create_subprocess_exec(
            *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-S", str(script), str(folder)),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said = (await driver.communicate())[0].decode()
        if "Permission denied" in said and "slime_agl" in said:
            pytest.skip("this checkout cannot be read by other users")
        assert driver.returncode == 0 and said.endswith("contained\n"), said
    finally:
        await (await asyncio.create_subprocess_exec("rm", "-rf", str(folder))).wait()

"""What every sandbox does, whatever its backend."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from pathlib import Path

import pytest

from slime_agl.errors import SandboxError
from slime_agl.sandbox.kept import KeptBackend
from slime_agl.sandbox.protocol import Limits, SandboxSpec

SPEC = SandboxSpec()
BOMB = """
import os, time
try:
    for _ in range(500):
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
except OSError:
    print("full", flush=True)
time.sleep(600)
"""


async def test_a_command_ends_with_its_status_and_both_outputs(backend):
    async with backend.sandbox(SPEC) as box:
        assert await box.exec("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
        assert await box.exec("kill -9 $$") == (137, "", "")
        assert await box.exec("cat") == (0, "", ""), "stdin is empty"


async def test_commands_start_in_the_working_folder_with_what_the_spec_and_the_call_set(backend):
    async with backend.sandbox(SandboxSpec(workdir="/work/deep", env={"A": "1", "B": "1"})) as box:
        cmd = 'echo "$A $B"; pwd; touch "$HOME/x" "${TMPDIR:-/tmp}/y" && echo writable'
        _, out, _ = await box.exec(cmd, env={"B": "2"})
        assert out.split("\n")[:3] == ["1 2", box.path("/work/deep"), "writable"]
        process = await box.start("pwd", cwd="/tmp")
        assert await process.wait() == 0
        assert await process.output() == box.path("/tmp") + "\n"


async def test_check_raises_with_the_status_and_what_was_said(backend):
    async with backend.sandbox(SPEC) as box:
        with pytest.raises(SandboxError, match="status 7 .*no such luck"):
            await box.exec("echo no such luck >&2; exit 7", check=True)


async def test_at_its_timeout_a_command_and_all_it_started_are_killed(backend, processes):
    seconds = f"30{secrets.randbelow(10**6)}"
    async with backend.sandbox(SPEC) as box:
        status, out, _ = await box.exec(f"echo before; setsid sleep {seconds} & sleep {seconds}", timeout=0.5)
        assert (status, out) == (124, "before\n")
        assert processes(f"sleep {seconds}") == set()
        assert await box.exec("echo and on") == (0, "and on\n", "")


async def test_huge_output_is_cut_in_the_middle_and_counted(backend):
    async with backend.sandbox(SPEC) as box:
        status, out, err = await box.exec("echo begin; head -c 20000000 /dev/zero | tr '\\0' x; echo end")
        assert (status, err) == (0, "")
        assert out.startswith("begin\nxxx") and out.endswith("xxx end\n".replace(" ", ""))
        assert "bytes left out" in out and len(out) < (1 << 20) + 100


async def test_a_command_that_leaves_a_daemon_behind_ends_at_once_and_the_daemon_goes_on(backend):
    if backend.name == "podman":
        pytest.skip("its exec closes the output that the daemon inherited")
    async with backend.sandbox(SPEC) as box:
        code = "for i in 1 2 3; do echo noise; done; while [ ! -e go ]; do sleep 0.01; done; echo more; touch done"
        assert (await box.exec(f"({code}) & echo left", timeout=60))[0] == 0
        assert (await box.exec("touch go; while [ ! -e done ]; do sleep 0.01; done", timeout=60))[0] == 0


async def test_files_come_back_as_they_were_written(backend, tmp_path: Path):
    async with backend.sandbox(SPEC) as box:
        for content in ("grüße\n", "x" * 3_000_000, "", b"raw"):
            await box.write_file("/deep/er/file", content)
            assert await box.read_file("/deep/er/file") == (content.decode() if isinstance(content, bytes) else content)
        await box.write_file("/deep/er/file", b"\xff!")
        assert await box.read_file("/deep/er/file") == "\N{REPLACEMENT CHARACTER}!"
        (tmp_path / "host").write_text("of the host")
        await box.write_file("/app/copy", tmp_path / "host")
        assert (await box.exec("cat copy"))[1] == "of the host"
        assert await box.read_file("/not/there") == await box.read_file("/app") == ""


async def test_a_written_file_keeps_the_mode_it_had(backend):
    async with backend.sandbox(SPEC) as box:
        await box.exec("echo old > tool; chmod 755 tool")
        await box.write_file("/app/tool", "echo new")
        assert (await box.exec("./tool"))[1] == "new\n"


async def test_an_uploaded_folder_keeps_modes_and_links_and_is_merged(backend, tmp_path: Path):
    tree = tmp_path / "tree"
    (tree / "sub" / "empty").mkdir(parents=True)
    (tree / "run.sh").write_text("echo ran")
    (tree / "run.sh").chmod(0o755)
    (tree / "sub" / "link").symlink_to("../run.sh")
    (tree / "sub" / "dangling").symlink_to("/no/such")
    (tree / "closed").mkdir()
    (tree / "closed" / "in").write_text("in it")
    (tree / "closed").chmod(0o555)
    os.mkfifo(tree / "fifo")
    async with backend.sandbox(SPEC) as box:
        await box.write_file("/app/there", "stays")
        await box.upload(tree, "/app")
        assert (await box.exec("./run.sh; sh sub/link; readlink sub/dangling; cat there; ls -d sub/empty"))[1] == (
            "ran\nran\n/no/such\nstayssub/empty\n"
        )
        assert (await box.exec("stat -c %a closed; cat closed/in; test -e fifo"))[:2] == (1, "555\nin it")
        await box.upload(tree / "run.sh", "/bin2/go")
        assert await box.read_file("/bin2/go") == "echo ran"


async def test_what_cannot_be_uploaded_is_named(backend, tmp_path: Path):
    async with backend.sandbox(SPEC) as box:
        with pytest.raises(SandboxError, match="no_such"):
            await box.upload(tmp_path / "no_such", "/app")
        with pytest.raises(SandboxError, match="absolute path"):
            await box.write_file("/app/../../etc/passwd", "x")
        with pytest.raises(SandboxError, match="Is a directory|status"):
            await box.write_file("/app", "x")
        with pytest.raises(SandboxError, match="longer than"):
            await box.exec("true " + "x" * 200_000)


async def test_a_detached_program_tells_its_end_and_keeps_its_output(backend):
    async with backend.sandbox(SPEC) as box:
        process = await box.start("echo one; echo two >&2; while [ ! -e go ]; do sleep 0.01; done; exit 5")
        assert await process.wait(0.01) is None
        await box.exec("touch go")
        assert await process.wait() == await process.wait(0) == 5
        assert await process.output() == "one\ntwo\n"
        assert await process.output(4) == "two\n"


async def test_killing_a_detached_program_ends_its_daemons(backend, processes):
    seconds = f"31{secrets.randbelow(10**6)}"
    async with backend.sandbox(SPEC) as box:
        process = await box.start(f"setsid sleep {seconds} & sleep {seconds}")
        await process.kill()
        assert await process.wait() == 137
        assert processes(f"sleep {seconds}") == set()
        await process.kill()


async def test_many_commands_run_at_a_time(backend):
    async with backend.sandbox(SPEC) as box:
        done = await asyncio.gather(*(box.exec(f"sleep 0.1; echo {n}") for n in range(40)))
        assert [out for _, out, _ in done] == [f"{n}\n" for n in range(40)]


async def test_at_the_end_nothing_is_left(kept: KeptBackend, processes):
    seconds = f"32{secrets.randbelow(10**6)}"
    async with kept.sandbox(SPEC) as box:
        await box.exec(f"(setsid env -i sleep {seconds} &) ; (trap '' TERM HUP INT; setsid sleep {seconds} &)")
        await box.exec("mkdir -p a/b; touch a/b/c; chmod 0 a/b a")
        await box.start(f"sleep {seconds}")
        while len(processes(f"sleep {seconds}")) < 3:
            await asyncio.sleep(0.01)
        assert await box.is_alive()
    assert not await box.is_alive()
    assert processes(f"sleep {seconds}") == set()
    assert [entry.name for entry in (kept.home.base / kept.home.driver).iterdir()] == ["lock"]
    with pytest.raises(SandboxError, match="not running"):
        await box.exec("true")


async def test_a_tree_of_a_thousand_levels_is_removed(kept: KeptBackend):
    async with kept.sandbox(SPEC) as box:
        code = "import os\nfor _ in range(1200): os.mkdir('d'); os.chdir('d')"
        assert (await box.exec(f'python3 -c "{code}"'))[0] == 0
    assert [entry.name for entry in (kept.home.base / kept.home.driver).iterdir()] == ["lock"]


async def test_cancelling_a_command_kills_it(backend, processes):
    seconds = f"33{secrets.randbelow(10**6)}"
    async with backend.sandbox(SPEC) as box:
        task = asyncio.ensure_future(box.exec(f"touch begun; sleep {seconds}"))
        await box.exec("while [ ! -e begun ]; do sleep 0.01; done", timeout=60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await box.exec("true")  # answered after the kill
        assert processes(f"sleep {seconds}") == set()


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21])
async def test_cancelling_a_creation_leaves_nothing(kept: KeptBackend, processes, steps: int):
    async def enter() -> None:
        async with kept.sandbox(SPEC):
            await asyncio.sleep(600)

    task = asyncio.ensure_future(enter())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert kept.open == set()
    driver = kept.home.base / kept.home.driver
    assert not driver.exists() or [entry.name for entry in driver.iterdir()] == ["lock"]
    assert processes(f"{os.getpid()}-{kept.home.driver}") == set()


async def test_two_sandboxes_do_not_share_files(backend):
    async with backend.sandbox(SPEC) as one, backend.sandbox(SPEC) as other:
        assert one.sandbox_id != other.sandbox_id
        await one.write_file("/app/secret", "x")
        assert await other.read_file("/app/secret") == ""


async def test_the_environment_of_the_driver_stays_out(kept: KeptBackend, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_API_KEY", "hunter2")
    async with kept.sandbox(SPEC) as box:
        assert "hunter2" not in (await box.exec("env"))[1]


async def test_a_fork_bomb_stays_within_its_limit_and_ends_with_the_sandbox(backend, processes):
    marker = f"bomb{secrets.randbelow(10**6)}"
    code = BOMB + f"# {marker}"
    async with backend.sandbox(SandboxSpec(limits=Limits(processes=60))) as box:
        if not getattr(backend, "limits_processes", backend.name == "podman"):
            pytest.skip(f"{backend.name} cannot limit processes as this user")
        await box.write_file("/app/bomb.py", code)
        process = await box.start(f"exec python3 bomb.py {marker}")
        for _ in range(500):
            if "full" in await process.output():
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("500 processes were started under a limit of 60")
        assert 10 < len(processes(marker)) <= 60
        if isinstance(backend, KeptBackend):
            assert (await box.exec("echo not started"))[0] != 0, "an answer, not an error of the infrastructure"
    assert processes(marker) == set()


async def test_folders_of_the_host_stand_at_their_paths(kept: KeptBackend, tmp_path: Path):
    for name in ("tool", "cache"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "run").write_text(f"echo {name}")
    spec = SandboxSpec(
        mounts={"/opt/tool": tmp_path / "tool"}, shared={"/work": tmp_path / "cache"}, workdir="/work/bin"
    )
    async with kept.sandbox(spec) as box:
        assert (await box.exec(f"sh run; sh {box.path('/opt/tool/bin/run')}"))[1] == "cache\ntool\n"
        assert await box.read_file("/opt/tool/bin/run") == "echo tool"
        await box.write_file("/work/new/file", "written")
        with pytest.raises(SandboxError, match="Read-only"):
            await box.write_file("/opt/tool/bin/run", "x")
        with pytest.raises(SandboxError, match="Read-only"):
            await box.upload(tmp_path / "cache", "/opt/tool/new")
    assert (tmp_path / "cache" / "new" / "file").read_text() == "written"
    assert [entry.name for entry in (tmp_path / "tool").iterdir()] == ["bin"]


async def test_a_missing_host_folder_is_named(kept: KeptBackend, tmp_path: Path):
    with pytest.raises(SandboxError, match="no_such"):
        await kept.sandbox(SandboxSpec(mounts={"/opt/x": tmp_path / "no_such"})).__aenter__()


async def test_a_sandbox_that_died_is_noticed_and_still_removed(kept: KeptBackend):
    async with kept.sandbox(SPEC) as box:
        process = await box.start("sleep 600")
        os.kill(box._life.leader, signal.SIGKILL)
        with pytest.raises(SandboxError, match=box.sandbox_id):
            await process.wait()
        with pytest.raises(SandboxError):
            await box.exec("true")
        assert not await box.is_alive()
    assert [entry.name for entry in (kept.home.base / kept.home.driver).iterdir()] == ["lock"]

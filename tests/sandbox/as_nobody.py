"""A driver of an unprivileged user: its sandbox is contained, also in the number of its processes."""

from __future__ import annotations

import asyncio
import sys

from slime_agl.sandbox.bwrap import BwrapBackend
from slime_agl.sandbox.home import Home
from slime_agl.sandbox.protocol import Limits, SandboxSpec
from slime_agl.sandbox.reach import Reach

BOMB = """
import os, time
count = 0
try:
    for _ in range(300):
        if os.fork() == 0:
            time.sleep(600)
        count += 1
except OSError:
    pass
print(count, flush=True)
"""


async def main() -> None:
    BwrapBackend.check()
    backend = BwrapBackend(Home(sys.argv[1]), Reach())
    async with backend.sandbox(SandboxSpec(limits=Limits(processes=40))) as box:
        assert (await box.exec("id -u; cat /etc/hosts | wc -l"))[1] == "1000\n2\n"
        assert (await box.exec("echo x > /proc/sys/kernel/core_pattern"))[0] != 0
        assert (await box.exec("kill -9 1; cat /proc/1/environ"))[0] != 0
        await box.write_file("/app/bomb.py", BOMB)
        process = await box.start("python3 bomb.py")
        while not (said := await process.output()).endswith("\n"):
            await asyncio.sleep(0.01)
        assert 10 < int(said) < 40, said
        await process.kill()
        await box.exec("mkdir closed; touch closed/x; chmod 0 closed")
    await backend.close()
    assert not list(backend.home.base.iterdir())
    print("contained")


asyncio.run(main())

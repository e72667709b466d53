"""`python -m slime_agl.harness NAME...`: install harnesses on this machine before they are needed."""

from __future__ import annotations

import asyncio
import sys

from slime_agl.errors import SlimeAglError
from slime_agl.harness.catalog import program_named
from slime_agl.harness.install import Installer


async def main(names: list[str]) -> None:
    installer = Installer()
    for name in names:
        program = program_named(name)
        found = await installer.install(program)
        sys.stdout.write(f"{name} {program.version} is in {found.bin}\n")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except SlimeAglError as error:
        sys.exit(f"slime_agl.harness: {error}")

"""`slime-agl engine`: an SGLang-compatible server on the CPU."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import click

from slime_agl.cli.waiting import waiting

if TYPE_CHECKING:
    from slime_agl.local.engine.server import EngineServer


@click.command(short_help="Serve a model on the CPU as an SGLang server does.")
@click.option("--model", default="smollm2", show_default=True, help="'smollm2' or a Hugging Face directory.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=30000,
    show_default=True,
    help="Port to bind; 0 takes a free one.",
)
@click.option("--max-running", metavar="N", default=16, show_default=True, help="Maximum requests decoded together.")
@click.option("--seed", metavar="N", default=0, show_default=True, help="Seed for requests without one.")
@click.option("--threads", metavar="N", default=None, type=int, help="CPU threads; half the cores by default.")
def engine(model: str, host: str, port: int, max_running: int, seed: int, threads: int | None) -> None:
    """Serve a model on the CPU with SGLang's /generate and control endpoints.

    Prints its address when ready, and serves until Ctrl-C.
    """
    # Imported late: torch takes seconds, and `slime-agl --help` should not.
    with waiting(f"loading {model}"):
        from slime_agl.local.engine.model import use_threads
        from slime_agl.local.engine.server import EngineServer
        from slime_agl.local.engine.transformers_backend import load_backend
        from slime_agl.preflight.address import require_bindable

        # Loading the model is slow: check the port first.
        require_bindable(host, port, "give a free port with --port, or 0 to take any")
        use_threads(threads)
        server = EngineServer(load_backend(model, max_running=max_running, seed=seed), host=host, port=port, name=model)
    asyncio.run(_serve(server))


async def _serve(server: EngineServer) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    click.echo(f"serving on {server.url}", err=True)
    try:
        await stop.wait()
    finally:
        await server.stop()

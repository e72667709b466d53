"""Agents travel to workers by name: what a worker cannot import under that name is refused at the start."""

from __future__ import annotations

import platform

from slime_agl.config import Config
from slime_agl.errors import ConfigError
from slime_agl.host import load_object


def require_portable(config: Config) -> None:
    """Check, before any worker is started, that import paths mean the same in another process.

    Raises:
        ConfigError: a path leads into the script that this process runs.
    """
    for key, path in (("agl.agent", config.agent), ("agl.reward", config.reward), ("agl.task", config.task)):
        if isinstance(path, str) and path.replace(":", ".").partition(".")[0] == "__main__":
            raise ConfigError(
                f"{key} is {path!r}, and `__main__` is another program in each of the workers (agl.workers.count is "
                f"{config.workers.count}); move it into a module that they can import, or set agl.workers.count to 0"
            )


def require_importable(config: Config) -> None:
    """Check, in a worker, that the agent can be imported here.

    Raises:
        ConfigError: it cannot; names the machine and what to do.
    """
    if not isinstance(config.agent, str):
        return  # a harness is part of this package
    try:
        load_object(config.agent, key="agl.agent")
    except ConfigError as error:
        raise ConfigError(
            f"a worker on {platform.node()} cannot import the agent: {error}. Workers import agents by name: what only "
            "the rollout process has does not exist there. Install the agent's package on every node, or carry its "
            "directory to them with the Ray job's runtime_env (working_dir, or PYTHONPATH in env_vars)"
        ) from error

"""slime's rollout function: `--rollout-function-path slime_agl.rollout.generate`."""

from slime_agl.rollout.entry import generate, shutdown

__all__ = ["generate", "shutdown"]

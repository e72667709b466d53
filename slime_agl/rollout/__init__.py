"""slime's rollout functions: `--rollout-function-path slime_agl.rollout.generate`, or `.sft` for exported rows."""

from slime_agl.rollout.entry import generate, shutdown
from slime_agl.rollout.supervised import sft

__all__ = ["generate", "sft", "shutdown"]

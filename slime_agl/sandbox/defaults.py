"""Fill in what a spec leaves to the configuration."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path

from slime_agl.config.sandbox import SandboxConfig
from slime_agl.sandbox.protocol import Limits, SandboxSpec


def completed(spec: SandboxSpec, config: SandboxConfig) -> SandboxSpec:
    """Return the spec with the configured image, limits, mounts and, under an open network, environment."""
    limits = {
        field.name: own if (own := getattr(spec.limits, field.name)) is not None else getattr(config.limits, field.name)
        for field in fields(Limits)
    }
    passed = {name: os.environ[name] for name in config.env if name in os.environ} if spec.network == "open" else {}
    return replace(
        spec,
        image=spec.image or config.image,
        limits=Limits(**limits),
        mounts={**{inside: Path(outside) for inside, outside in (config.mounts or {}).items()}, **spec.mounts},
        env={**passed, **spec.env},
        ttl_seconds=min(spec.ttl_seconds, config.ttl_seconds),
    )

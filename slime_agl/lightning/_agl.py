"""The names used from Agent Lightning, imported in one place.

Importing this module takes seconds, and its import chain emits warnings about other packages' code.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from slime_agl.lightning import _late_litellm

# Without it litellm downloads a price list when it is imported, by an agent or Agent Lightning's proxy.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

_late_litellm.register()

with warnings.catch_warnings():
    # Deprecation warnings of other packages would fail the import under "error".
    warnings.simplefilter("ignore")
    from agentlightning.algorithm.fast import FastAlgorithm
    from agentlightning.emitter.reward import get_reward_value
    from agentlightning.litagent import LitAgent
    from agentlightning.litagent.decorator import FunctionalLitAgent
    from agentlightning.runner import LitAgentRunner
    from agentlightning.semconv import LightningSpanAttributes, RewardPydanticModel
    from agentlightning.store import (
        InMemoryLightningStore,
        LightningStore,
        LightningStoreClient,
        LightningStoreServer,
    )
    from agentlightning.tracer import AgentOpsTracer, Tracer, clear_active_tracer, get_active_tracer, set_active_tracer
    from agentlightning.tracer.dummy import DummySpanRecordingContext
    from agentlightning.types import (
        LLM,
        Attempt,
        AttemptedRollout,
        Attributes,
        NamedResources,
        PromptTemplate,
        ProxyLLM,
        Resource,
        ResourcesUpdate,
        Rollout,
        RolloutConfig,
        Span,
        SpanCoreFields,
        TraceStatus,
        Worker,
    )
    from agentlightning.utils.id import generate_id
    from agentlightning.utils.otel import (
        extract_links_from_attributes,
        filter_and_unflatten_attributes,
        query_linked_spans,
    )
    from agentlightning.utils.server_launcher import PythonServerLauncherArgs
    from aiologic import Event

AnyAgent = LitAgent[Any]

__all__ = [
    "AgentOpsTracer",
    "AnyAgent",
    "LLM",
    "Attempt",
    "AttemptedRollout",
    "Attributes",
    "DummySpanRecordingContext",
    "Event",
    "FastAlgorithm",
    "FunctionalLitAgent",
    "InMemoryLightningStore",
    "LightningSpanAttributes",
    "LightningStore",
    "LightningStoreClient",
    "LightningStoreServer",
    "NamedResources",
    "LitAgent",
    "LitAgentRunner",
    "PromptTemplate",
    "ProxyLLM",
    "PythonServerLauncherArgs",
    "Resource",
    "ResourcesUpdate",
    "RewardPydanticModel",
    "Rollout",
    "RolloutConfig",
    "Span",
    "SpanCoreFields",
    "TraceStatus",
    "Tracer",
    "Worker",
    "clear_active_tracer",
    "extract_links_from_attributes",
    "filter_and_unflatten_attributes",
    "generate_id",
    "get_active_tracer",
    "get_reward_value",
    "query_linked_spans",
    "set_active_tracer",
]

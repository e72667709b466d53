"""The names we use of Agent Lightning, imported in one place.

Importing this module costs seconds, and its import chain warns about code that is not ours.
"""

from __future__ import annotations

import os
import warnings

from slime_agl.lightning import _late_proxy

# Without it litellm, which agentlightning imports, asks the network for a price list.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

_late_proxy.register()

with warnings.catch_warnings():
    # Their deprecations are theirs to mend; under "error" they would make the import fail.
    warnings.simplefilter("ignore")
    from agentlightning.emitter.reward import get_reward_value, get_rewards_from_span
    from agentlightning.litagent import LitAgent
    from agentlightning.litagent.decorator import FunctionalLitAgent
    from agentlightning.runner import LitAgentRunner
    from agentlightning.semconv import LightningSpanAttributes
    from agentlightning.store import InMemoryLightningStore, LightningStore, LightningStoreServer
    from agentlightning.tracer import Tracer, clear_active_tracer, get_active_tracer, set_active_tracer
    from agentlightning.tracer.dummy import DummySpanRecordingContext
    from agentlightning.types import (
        LLM,
        Attempt,
        AttemptedRollout,
        PromptTemplate,
        ProxyLLM,
        ResourcesUpdate,
        Rollout,
        RolloutConfig,
        Span,
        SpanCoreFields,
        TraceStatus,
    )
    from agentlightning.utils.otel import extract_links_from_attributes, query_linked_spans
    from agentlightning.utils.server_launcher import PythonServerLauncherArgs

__all__ = [
    "LLM",
    "Attempt",
    "AttemptedRollout",
    "DummySpanRecordingContext",
    "FunctionalLitAgent",
    "InMemoryLightningStore",
    "LightningSpanAttributes",
    "LightningStore",
    "LightningStoreServer",
    "LitAgent",
    "LitAgentRunner",
    "PromptTemplate",
    "ProxyLLM",
    "PythonServerLauncherArgs",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "Span",
    "SpanCoreFields",
    "TraceStatus",
    "Tracer",
    "clear_active_tracer",
    "extract_links_from_attributes",
    "get_active_tracer",
    "get_reward_value",
    "get_rewards_from_span",
    "query_linked_spans",
    "set_active_tracer",
]

"""Agent Lightning's imports in our process, each checked in a separate process."""

from __future__ import annotations

import subprocess
import sys

SERVER = "litellm.proxy.proxy_server"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_runtime_does_not_import_litellms_proxy_server_and_the_proxy_is_there_when_used():
    program = f"""
import sys
import slime_agl.assemble
import agentlightning as agl
agl.LitAgent, agl.rollout, agl.emit_reward, agl.Trainer  # what agents name
assert {SERVER!r} not in sys.modules and "torch" not in sys.modules
proxy = agl.LLMProxy
assert not isinstance(3, proxy) and {SERVER!r} not in sys.modules
from agentlightning.llm_proxy import ModelConfig  # real, and so is what the name stands for now
import agentlightning.llm_proxy as real
assert real.LLMProxy is not proxy and isinstance(object.__new__(real.LLMProxy), proxy)
assert proxy.start is real.LLMProxy.start
print({SERVER!r} in sys.modules)
"""
    assert run(program) == "True"


def test_the_runtime_does_not_import_litellm_and_its_instrumentation_is_there_when_used():
    program = """
import sys
import slime_agl.assemble
assert "litellm" not in sys.modules
from agentlightning.instrumentation import LITELLM_INSTALLED, instrument_all, uninstrument_all
assert LITELLM_INSTALLED and "litellm" not in sys.modules
instrument_all()
from litellm.integrations.opentelemetry import OpenTelemetry
import agentlightning.instrumentation.litellm as real
patched = OpenTelemetry.set_attributes is real.patched_set_attributes
uninstrument_all()
print(patched, OpenTelemetry.set_attributes is real.original_set_attributes, real.__file__.endswith("litellm.py"))
"""
    assert run(program) == "True True True"


def test_an_agentlightning_that_is_imported_already_is_left_as_it_is():
    program = """
import sys, types
sys.modules["agentlightning"] = types.ModuleType("agentlightning")
from slime_agl.lightning import _late_litellm
_late_litellm.register()
print(_late_litellm.PROXY in sys.modules)
"""
    assert run(program) == "False"

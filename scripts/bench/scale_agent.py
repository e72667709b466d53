"""The agent of bench.scale, importable in workers."""

from slime_agl.testing import chat_agent

four_turns = chat_agent(turns=4)

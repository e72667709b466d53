"""Agents that a worker can import."""

from slime_agl.testing import chat_agent, sync_agent

four_turns = chat_agent(turns=4)
blocking = sync_agent(turns=2)

"""Programs as agents: Claude Code, Codex and others, each execution in a sandbox, its work graded by tests.

>>> from slime_agl.harness.agent import Harness
>>> agent = Harness("codex", sandbox="bwrap")
"""

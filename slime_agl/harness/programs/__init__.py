"""The harnesses, a module each."""

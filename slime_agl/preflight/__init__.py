"""Checks before any GPU is booked: an agent's dry run, the machine and its configuration, slime's flags."""

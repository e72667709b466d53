"""Places that run programs apart from this machine: one protocol, and the backends behind it."""

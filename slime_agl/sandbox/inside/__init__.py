"""What runs inside a sandbox: imports the standard library only, and nothing of this package outside this folder."""

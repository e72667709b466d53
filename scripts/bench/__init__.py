"""Benchmarks. `python -m bench` measures the gateway (see `__main__`); `heavy_tail.py` stands alone."""

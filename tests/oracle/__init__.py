"""Random agents against an engine that gives every sampled token a unique logprob.

By its logprob each trained token is found again in the engine's record. The checker knows what the engine was sent and
The logprob identifies each trained token in the engine's record. The checker knows what the engine received and
"""

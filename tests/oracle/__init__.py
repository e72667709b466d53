"""Random agents against an engine that gives every sampled token a logprob of its own.

By its logprob each trained token is found again in the engine's record. The checker knows what the engine was sent and
answered and what each agent sent and received; of the product it reads finished Samples and the counts of an account.
"""

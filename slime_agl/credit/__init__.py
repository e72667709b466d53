"""From the rewards of an execution to the reward of each of its Samples, and from there to what GRPO trains on."""

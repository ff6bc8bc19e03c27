"""From trajectories to tensors: samples, packed rows, logprobs."""

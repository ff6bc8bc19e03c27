"""What learns: weights, optimisers, precision, processes, checkpoints."""

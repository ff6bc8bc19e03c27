"""Training: pure arithmetic (advantages, loss, batching) and the loops that use it."""

"""The deterministic reward: pure functions of a task and an episode record."""

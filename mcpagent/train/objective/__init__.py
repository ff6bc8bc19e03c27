"""The objective: losses, advantages and values, as pure functions."""

"""Tasks that a model writes and that nothing takes at its word."""

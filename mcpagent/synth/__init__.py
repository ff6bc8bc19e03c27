"""Data synthesis: tasks that are grounded in what the servers really answer."""

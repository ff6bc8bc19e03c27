"""Policies: anything that turns a context into the next completion."""

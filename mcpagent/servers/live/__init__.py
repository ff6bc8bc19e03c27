"""Upstreams that ask the real web services, with the user's own keys."""

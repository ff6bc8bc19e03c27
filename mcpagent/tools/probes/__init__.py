"""Probes of a user's own servers: do they keep episodes apart, and what do they cost."""

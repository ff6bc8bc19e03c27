"""Probes of a user's own servers: do they keep episodes apart, what do they cost, what do faults do."""

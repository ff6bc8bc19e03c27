"""Rollouts: many episodes at once."""

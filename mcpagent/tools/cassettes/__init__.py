"""Cassettes: answers of tools, recorded once and played again."""

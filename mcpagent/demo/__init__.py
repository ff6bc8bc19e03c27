"""The demonstration: a small model trained on real tools, offline, and what else could explain its gain."""

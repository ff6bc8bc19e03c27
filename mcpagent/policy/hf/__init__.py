"""Sampling with transformers: the policy and its two engines."""

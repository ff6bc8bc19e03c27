"""Whole jobs, made of the layers below."""

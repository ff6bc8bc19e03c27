"""Whole jobs, made of the layers below: train, evaluate, collect, export."""

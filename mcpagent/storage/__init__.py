"""Datasets, trajectories and run folders on disk; everything is written whole or not at all."""

"""Evaluation: metrics with intervals, paired comparison, and the report of a run."""

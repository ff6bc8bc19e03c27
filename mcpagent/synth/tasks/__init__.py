"""Candidates, the stages that each passes before it is kept, and the dataset that it is written to."""

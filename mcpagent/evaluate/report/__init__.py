"""The report of a run: one HTML file that a person opens anywhere, offline."""

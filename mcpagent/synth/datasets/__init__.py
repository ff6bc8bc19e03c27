"""Datasets as a whole: validated, thinned out, divided, described."""

"""Command line: one module for each command group; each parses, calls one function and prints."""

"""How models write tool calls: one module a dialect, each with what reads it and what writes it."""

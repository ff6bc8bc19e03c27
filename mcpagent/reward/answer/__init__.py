"""The answer of an episode: the line that gives it, read by type, and what datasets of others ask for.

`line` finds the line, `types` reads its value, `others` grades messages without a line, `verdict` puts them
together; `shown` says where a value stands in a text.
"""

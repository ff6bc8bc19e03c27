"""`python -m mcpagent`."""

from mcpagent.cli.main import run

run()

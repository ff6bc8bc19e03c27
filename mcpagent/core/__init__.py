"""The words of mcpagent: plain records and pure functions, no I/O."""

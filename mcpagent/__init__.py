"""mcpagent: train and evaluate language-model agents on MCP tool servers."""

__version__ = "0.1.0"

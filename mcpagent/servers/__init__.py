"""The built-in MCP servers: polygon, fmp, tavily, slack and python."""

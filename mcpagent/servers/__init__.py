"""The built-in MCP servers: polygon, fmp, tavily and slack."""

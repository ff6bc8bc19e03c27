"""MCP client side: server configuration, sessions, pool, catalog."""

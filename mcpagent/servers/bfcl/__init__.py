"""The eight backends of BFCL's multi-turn tasks as MCP servers, from the user's own copy of `bfcl-eval`."""

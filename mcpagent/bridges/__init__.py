"""mcpagent's episodes in other people's trainers. Each module imports the core; nothing imports a bridge."""

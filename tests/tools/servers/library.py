"""A server with resources, templates and prompts beside its one tool: `python library.py`."""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("library", log_level="ERROR")


@server.resource("book://rules", name="rules", description="How to play.")
def rules() -> str:
    return "Throw the die. Whoever has six begins."


@server.resource("book://cover", name="cover", mime_type="image/png")
def cover() -> bytes:
    return b"\x89PNG" + bytes(96)


@server.resource("page://{number}", name="page")
def page(number: str) -> str:
    return f"This is page {number}."


@server.prompt(description="Ask for a summary.")
def summary(of: str) -> str:
    return f"Summarise {of} in one sentence."


@server.tool()
def lend(title: str) -> str:
    return f"lent {title}"


if __name__ == "__main__":
    server.run()

"""A server that asks before it answers, in rounds of input: `python curious.py`."""

from __future__ import annotations

from typing import Annotated

import mcp.server.mcpserver as mcpserver
from mcp.server import MCPServer
from pydantic import BaseModel

server = MCPServer("curious", log_level="ERROR")


class Sure(BaseModel):
    sure: bool


class Likely(BaseModel):
    sure: bool = True


async def ask_likely(title: str) -> mcpserver.Elicit[Likely]:
    return mcpserver.Elicit(f"Archive {title}?", Likely)


async def ask_sure(title: str) -> mcpserver.Elicit[Sure]:
    return mcpserver.Elicit(f"Delete {title}?", Sure)


Answer = Annotated[mcpserver.ElicitationResult[Sure], mcpserver.Resolve(ask_sure)]


@server.tool()
async def delete(title: str, answer: Answer) -> str:
    if answer.action != "accept":
        return f"kept {title}: {answer.action}"
    return f"deleted {title}" if answer.data.sure else f"kept {title}: not sure"


@server.tool()
async def archive(
    title: str, answer: Annotated[mcpserver.ElicitationResult[Likely], mcpserver.Resolve(ask_likely)]
) -> str:
    return f"archived {title}: {answer.action} {answer.data.sure if answer.action == 'accept' else ''}"


if __name__ == "__main__":
    server.run()

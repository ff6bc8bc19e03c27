"""The calculator as an MCP server over stdio: one tool, whose operands may be calculations themselves."""

from __future__ import annotations

from functools import reduce
from typing import Literal

from mcp.server import MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel

SERVER = "calculator"
Operation = Literal["add", "subtract", "multiply", "divide"]


class Calculation(BaseModel):
    """An operation on numbers and on other calculations."""

    operation: Operation
    operands: list[float | Calculation]


server = MCPServer(SERVER)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def calculate(operation: Operation, operands: list[float | Calculation]) -> float:
    """Calculate with operands from left to right; each is a number, or a calculation of the same form."""
    values = [
        calculate(operand.operation, operand.operands) if isinstance(operand, Calculation) else operand
        for operand in operands
    ]
    return float(reduce(_FUNCTIONS[operation], values))


_FUNCTIONS = {
    "add": lambda left, right: left + right,
    "subtract": lambda left, right: left - right,
    "multiply": lambda left, right: left * right,
    "divide": lambda left, right: left / right,
}

if __name__ == "__main__":
    server.run("stdio")

"""Serve tools of BFCL over stdio, for an mcp.json: `python -m examples.bfcl.server BACKEND --package DIR`, or
`--functions FILE` for the functions of single-turn questions."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from examples.bfcl.package import (
    BACKENDS,
    STATELESS,
    VERSION,
    Backend,
    BfclPackage,
    JsonObject,
    load_tool,
    state_tool,
)
from examples.bfcl.single_turn import SERVER
from mcpagent import UserError

_Context = ServerRequestContext[Backend, Any]


def build_bfcl_server(package: BfclPackage, backend: str) -> Server[Backend]:
    """Return the server of a backend, one of `BACKENDS`. Each connection has a backend of its own, so that
    an episode needs its own connection. Like BFCL's executor it checks no arguments: a backend refuses what
    it cannot take. Raises UserError if a package that the backend needs is not installed."""
    package.backend_class(backend)
    tools = [Tool.model_validate(tool) for tool in package.tools(backend)]
    names = {tool.name for tool in tools}
    listed = ListToolsResult(tools=[*tools, *_environment_tools(backend)])

    @asynccontextmanager
    async def lifespan(_: Server[Backend]) -> AsyncIterator[Backend]:
        yield Backend(package, backend)

    async def list_tools(_: _Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return listed

    async def call_tool(context: _Context, params: CallToolRequestParams) -> CallToolResult:
        instance, arguments = context.lifespan_context, dict(params.arguments or {})
        if params.name == state_tool(backend):
            return _read_state(instance, arguments.get("results", []))
        if params.name in names:
            outcome = instance.call(params.name, arguments)
        elif params.name == load_tool(backend) and backend not in STATELESS:
            instance.load(arguments["scenario"], long_context=arguments.get("long_context", False))
            return _result("loaded")
        else:
            return _result(f"there is no tool {params.name!r}", is_error=True)
        return _result(outcome.text, is_error=outcome.is_error)

    return Server(
        backend, version=VERSION, lifespan=lifespan, on_list_tools=list_tools, on_call_tool=call_tool
    )


def build_function_server(tools: list[JsonObject]) -> Server[None]:
    """Return a server that has `tools` (as `tool_of` has them) and takes any call: it is the call that BFCL
    checks, and its functions do not exist."""
    listed = ListToolsResult(tools=[Tool.model_validate(tool) for tool in tools])

    async def list_tools(_: Any, __: PaginatedRequestParams | None) -> ListToolsResult:
        return listed

    async def call_tool(_: Any, __: CallToolRequestParams) -> CallToolResult:
        return _result("noted")

    return Server(SERVER, version=VERSION, on_list_tools=list_tools, on_call_tool=call_tool)


def _environment_tools(backend: str) -> list[Tool]:
    load = Tool(
        name=load_tool(backend),
        description="For the environment: start again from a scenario of BFCL.",
        input_schema={
            "type": "object",
            "properties": {"scenario": {"type": "object"}, "long_context": {"type": "boolean"}},
            "required": ["scenario"],
        },
    )
    read = Tool(
        name=state_tool(backend),
        description="For the environment: the state, its hash, and which of `results` (hashes of texts) no "
        "call came to.",
        input_schema={
            "type": "object",
            "properties": {"results": {"type": "array", "items": {"type": "string"}}},
        },
    )
    return [read] if backend in STATELESS else [load, read]


def _read_state(instance: Backend, results: list[str]) -> CallToolResult:
    document: JsonObject = {
        "digest": instance.state_digest(),
        "missing_results": instance.missing(results),
        "state": instance.state(),
    }
    text = _clean(json.dumps(document, ensure_ascii=False))
    return _result(text, structured=json.loads(text))


def _clean(text: str) -> str:
    """Return `text` with U+FFFD for lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _result(
    text: str,
    *,
    is_error: bool = False,
    structured: JsonObject | None = None,
) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=_clean(text))],
        structured_content=structured,
        is_error=is_error,
    )


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> int:
    """Serve over stdio, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.bfcl.server")
    parser.add_argument("backend", nargs="?", choices=BACKENDS)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--package", type=Path, help="The folder that holds bfcl_eval: serve the backend.")
    source.add_argument("--functions", type=Path, help="A file of tools: serve them.")
    options = parser.parse_args()
    if (options.backend is None) is not (options.package is None):
        parser.error("name a backend with --package, and none with --functions")
    try:
        if options.functions is None:
            server = build_bfcl_server(BfclPackage(options.package), options.backend)
        else:
            server = build_function_server(json.loads(options.functions.read_text(encoding="utf-8")))
        asyncio.run(_serve(server))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

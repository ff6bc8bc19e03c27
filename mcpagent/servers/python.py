"""python: code that a model writes, run in a sandbox, and what it stored in this episode."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, Field, JsonValue

from mcpagent.servers.builtin import Answer, BuiltinTool, OpenUpstream, ServerDefinition
from mcpagent.servers.prices import PriceAnalysis, analyse
from mcpagent.servers.python_session import PythonSession
from mcpagent.servers.sandbox.contract import Sandbox

CodeArg = Annotated[
    str,
    Field(
        description="Standard library only; no network, no files of the host. The value of the last "
        "expression is the result. Every call starts afresh; `stored` is a dict of the stored results."
    ),
]


class Execution(Answer):
    """`output` is what the code printed; `result` the value of its last expression, as JSON where JSON has
    it, else as text."""

    result: JsonValue
    output: str


class Stored(Answer):
    """`n_stored` counts the keys stored so far."""

    key: str
    n_stored: int


class ExecutionContext(Answer):
    """`sandbox` is how the code is kept apart from this machine."""

    language: str
    version: str
    sandbox: str
    stored: dict[str, JsonValue]


class PipelineStep(BaseModel):
    operation: Literal["filter", "map", "sort", "apply"]
    expression: Annotated[
        str,
        Field(
            description="A Python expression in one line. filter, map and sort evaluate it for each `item` "
            "of a list; apply evaluates it once, over `data`."
        ),
    ]


class StepDone(Answer):
    """`count` is how many items the step left, null where that is no list."""

    operation: str
    count: int | None


class PipelineResult(Answer):
    steps: list[StepDone]
    result: JsonValue


def _session(ctx: Context[Any, Any]) -> PythonSession:
    return ctx.request_context.lifespan_context


async def execute_python(code: CodeArg, ctx: Context) -> Execution:
    done = await _session(ctx).run(code)
    return Execution(result=done.value, output=done.output)


async def process_mcp_data(
    data: Annotated[JsonValue, Field(description="A JSON value, the code's variable `data`.")],
    code: CodeArg,
    ctx: Context,
) -> Execution:
    done = await _session(ctx).run(code, data=data)
    return Execution(result=done.value, output=done.output)


async def store_execution_result(
    key: Annotated[str, Field(description="An earlier value of this key is replaced.")],
    value: Annotated[JsonValue, Field(description="A JSON value.")],
    ctx: Context,
) -> Stored:
    """Keep a value for later calls of this episode."""
    session = _session(ctx)
    session.store(key, value)
    return Stored(key=key, n_stored=len(session.stored))


async def get_execution_context(ctx: Context) -> ExecutionContext:
    """The stored results, and what runs the code."""
    session = _session(ctx)
    sandbox = session.sandbox
    return ExecutionContext(
        language=sandbox.language, version=sandbox.version, sandbox=sandbox.name, stored=dict(session.stored)
    )


async def analyze_financial_data(
    prices: Annotated[list[float], Field(description="Oldest first.", min_length=3, max_length=10_000)],
    periods_per_year: Annotated[int, Field(ge=1, le=1_000_000)] = 252,
) -> PriceAnalysis:
    """Returns, volatility and drawdown of a price series."""
    if not all(0 < price < float("inf") for price in prices):
        raise ToolError("prices must be positive numbers.")
    return analyse(prices, periods_per_year=periods_per_year)


async def create_data_pipeline(
    data: Annotated[JsonValue, Field(description="A JSON value, such as another tool's result.")],
    steps: Annotated[list[PipelineStep], Field(min_length=1, max_length=20)],
    ctx: Context,
) -> PipelineResult:
    counts, result = await _session(ctx).run_steps(
        data, [(step.operation, step.expression) for step in steps]
    )
    done = [StepDone(operation=step.operation, count=n) for step, n in zip(steps, counts, strict=True)]
    return PipelineResult(steps=done, result=result)


def python_definition(sandbox: Sandbox) -> ServerDefinition:
    """The server's tools; where the sandbox runs a subset of Python, their descriptions say so."""
    language = sandbox.language
    return ServerDefinition(
        name="python",
        instructions=f"Runs {language} {sandbox.version} code in the {sandbox.name} sandbox.",
        stateful=True,
        tools=(
            BuiltinTool(run=execute_python, description=f"Run code in {language}."),
            BuiltinTool(run=process_mcp_data, description=f"Run code over a JSON value, in {language}."),
            BuiltinTool(run=store_execution_result, read_only=False, replaces=True),
            BuiltinTool(run=get_execution_context),
            BuiltinTool(run=analyze_financial_data, in_limited_set=False),
            BuiltinTool(
                run=create_data_pipeline,
                description=f"Filter, map and sort JSON by expressions in {language}.",
                in_limited_set=False,
            ),
        ),
    )


def open_sessions(sandbox: Sandbox) -> OpenUpstream:
    """Every client gets a session of its own."""
    return lambda: nullcontext(PythonSession(sandbox))

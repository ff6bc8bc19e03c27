"""python: code that a model writes, run in a sandbox, and what it stored in this episode."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR
from pydantic import BaseModel, Field, JsonValue

from mcpagent.servers.builtin import Answer, BuiltinTool, ServerDefinition
from mcpagent.servers.sandbox.contract import Sandbox, SandboxBroken, SandboxOutcome
from mcpagent.servers.sandbox.inside import jsonable
from mcpagent.tools.wire import clean_text

_MAX_CODE_CHARS = 100_000
_MAX_DATA_BYTES = 1_000_000
_MAX_STORED_BYTES = 1_000_000  # of all stored results together
_MAX_KEY_CHARS = 100

_STEPS = {
    "filter": "data = [item for item in data if ({})]",
    "map": "data = [({}) for item in data]",
    "sort": "data = sorted(data, key=lambda item: ({}))",
    "apply": "data = ({})",
}
_COUNT = "counts.append(len(data) if isinstance(data, list) else None)"


def _place(code: str, line: int | None) -> str:
    lines = code.splitlines()
    if line is None or not 0 < line <= len(lines):
        return ""
    return f" (line {line}: {clean_text(lines[line - 1].strip()[:200])})"


def _unpacked(value: Any, *, n_steps: int) -> tuple[list[int | None], JsonValue]:
    """Return the counts and the data of what the last line shows; the expressions may have redefined that."""
    match value:
        case [list() as counts, data] if len(counts) == n_steps:
            return [n if isinstance(n, int) else None for n in counts], data
        case _:
            raise ToolError("The steps changed `counts`, which is not theirs.")


def _json_bytes(name: str, value: JsonValue) -> int:
    try:
        return len(json.dumps(value))
    except RecursionError:
        raise ToolError(f"{name} is nested too deeply.") from None
    except ValueError:
        raise ToolError(f"{name} holds a number with too many digits.") from None


class PriceAnalysis(Answer):
    """Shares, not percent: 0.05 is 5 %. `max_drawdown` is the largest fall from a peak, as a positive share;
    the volatility is that of the returns of one period, times the square root of the periods of a year."""

    n_prices: int
    total_return: float
    mean_return: float
    best_return: float
    worst_return: float
    annual_volatility: float
    max_drawdown: float


def analyse(prices: Sequence[float], *, periods_per_year: int) -> PriceAnalysis:
    """Analyse at least 3 positive prices, oldest first: simple returns, sample standard deviation (n - 1)."""
    returns = [after / before - 1 for before, after in pairwise(prices)]
    peaks = accumulate(prices, max)
    return PriceAnalysis(
        n_prices=len(prices),
        total_return=_rounded(prices[-1] / prices[0] - 1),
        mean_return=_rounded(statistics.fmean(returns)),
        best_return=_rounded(max(returns)),
        worst_return=_rounded(min(returns)),
        annual_volatility=_rounded(statistics.stdev(returns) * math.sqrt(periods_per_year)),
        max_drawdown=_rounded(max(1 - price / peak for price, peak in zip(prices, peaks, strict=True))),
    )


def _rounded(value: float) -> float:
    return round(value, 6)


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
    """`count` is how many items the step left, null where that is not a list."""

    operation: str
    count: int | None


class PipelineResult(Answer):
    steps: list[StepDone]
    result: JsonValue


class PythonSession:
    """The stored results live here, never where the code runs: each run gets a copy, as `stored`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._stored: dict[str, JsonValue] = {}
        self._stored_bytes: dict[str, int] = {}

    async def execute_python(self, code: CodeArg) -> Execution:
        """Run code; `python_definition` says in which language."""
        done = await self.run(code)
        return Execution(result=done.value, output=done.output)

    async def process_mcp_data(
        self,
        data: Annotated[JsonValue, Field(description="A JSON value, the code's variable `data`.")],
        code: CodeArg,
    ) -> Execution:
        """Run code over a JSON value."""
        done = await self.run(code, data=data)
        return Execution(result=done.value, output=done.output)

    async def store_execution_result(
        self,
        key: Annotated[str, Field(description="An earlier value of this key is replaced.")],
        value: Annotated[JsonValue, Field(description="A JSON value.")],
    ) -> Stored:
        """Keep a value for later calls of this episode."""
        if not key or len(key) > _MAX_KEY_CHARS or key != clean_text(key):
            raise ToolError(f"key must be a text of 1 to {_MAX_KEY_CHARS} characters.")
        kept = jsonable(value, clean=clean_text)
        sizes = self._stored_bytes | {key: len(key) + _json_bytes("value", kept)}
        if sum(sizes.values()) > _MAX_STORED_BYTES:
            raise ToolError(f"The stored results would have more than {_MAX_STORED_BYTES} bytes.")
        self._stored[key] = kept
        self._stored_bytes = sizes
        return Stored(key=key, n_stored=len(self._stored))

    async def get_execution_context(self) -> ExecutionContext:
        """The stored results, and what runs the code."""
        return ExecutionContext(
            language=self._sandbox.language,
            version=self._sandbox.version,
            sandbox=self._sandbox.name,
            stored=dict(self._stored),
        )

    async def analyze_financial_data(
        self,
        prices: Annotated[list[float], Field(description="Oldest first.", min_length=3, max_length=10_000)],
        periods_per_year: Annotated[int, Field(ge=1, le=1_000_000)] = 252,
    ) -> PriceAnalysis:
        """Returns, volatility and drawdown of a price series."""
        if not all(0 < price < float("inf") for price in prices):
            raise ToolError("prices must be positive numbers.")
        return analyse(prices, periods_per_year=periods_per_year)

    async def create_data_pipeline(
        self,
        data: Annotated[JsonValue, Field(description="A JSON value, such as another tool's result.")],
        steps: Annotated[list[PipelineStep], Field(min_length=1, max_length=20)],
    ) -> PipelineResult:
        """Filter, map and sort JSON by expressions."""
        lines: list[str] = []
        for number, step in enumerate(steps, start=1):
            if len(step.expression.splitlines()) != 1:
                raise ToolError(f"step {number} ({step.operation}): expression must be one line.")
            lines.append(f"{_STEPS[step.operation].format(step.expression)}; {_COUNT}")
        outcome = await self._outcome("\n".join([*lines, "[counts, data]"]), {"data": data, "counts": []})
        if outcome.error is not None:
            line = outcome.line or 0  # each step is a line
            place = f"step {line} ({steps[line - 1].operation}): " if 0 < line <= len(steps) else ""
            raise ToolError(place + outcome.error)
        counts, result = _unpacked(outcome.value, n_steps=len(steps))
        done = [StepDone(operation=step.operation, count=n) for step, n in zip(steps, counts, strict=True)]
        return PipelineResult(steps=done, result=result)

    async def run(self, code: str, **names: JsonValue) -> SandboxOutcome:
        """Run `code` with `names` and `stored` defined. Raises ToolError if it fails."""
        outcome = await self._outcome(code, names)
        if outcome.error is not None:
            printed = f"\nPrinted before:\n{outcome.output}" if outcome.output else ""
            raise ToolError(outcome.error + _place(code, outcome.line) + printed)
        return outcome

    async def _outcome(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        if len(code) > _MAX_CODE_CHARS:
            raise ToolError(f"The code has more than {_MAX_CODE_CHARS} characters.")
        for name, value in names.items():
            if _json_bytes(name, value) > _MAX_DATA_BYTES:
                raise ToolError(f"{name} has more than {_MAX_DATA_BYTES} bytes.")
        try:
            return await self._sandbox.run(code, {"stored": self._stored, **names})
        except SandboxBroken as error:
            raise MCPError(code=INTERNAL_ERROR, message=str(error)) from error


def python_definition(sandbox: Sandbox) -> ServerDefinition:
    """Return the server's tools. Their descriptions say so if the sandbox runs a subset of Python."""
    language = sandbox.language
    return ServerDefinition(
        name="python",
        instructions=f"Runs {language} {sandbox.version} code in the {sandbox.name} sandbox.",
        stateful=True,
        embedded=lambda: PythonSession(sandbox),
        tools=(
            BuiltinTool(PythonSession.execute_python, description=f"Run code in {language}."),
            BuiltinTool(
                PythonSession.process_mcp_data, description=f"Run code over a JSON value, in {language}."
            ),
            BuiltinTool(PythonSession.store_execution_result, read_only=False, replaces=True),
            BuiltinTool(PythonSession.get_execution_context),
            BuiltinTool(PythonSession.analyze_financial_data, in_limited_set=False),
            BuiltinTool(
                PythonSession.create_data_pipeline,
                description=f"Filter, map and sort JSON by expressions in {language}.",
                in_limited_set=False,
            ),
        ),
    )

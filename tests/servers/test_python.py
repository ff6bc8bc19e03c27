"""The python server: what an episode stores, pipelines, price figures, and the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult

from mcpagent.core.tools import ToolCall
from mcpagent.servers.provider import builtin_servers
from mcpagent.servers.registry import build_server
from mcpagent.servers.sandbox.contract import SandboxKind
from mcpagent.tools.pool import ToolPool
from tests.running import mcpagent, refused
from tests.servers.calls import call, over_http, text_of, with_client


def calls(*wanted: tuple[str, dict[str, Any]]) -> list[CallToolResult]:
    """Calls of one episode, one after the other."""

    async def work(client: Client) -> list[CallToolResult]:
        return [await client.call_tool(tool, arguments) for tool, arguments in wanted]

    return with_client(build_server("python"), work)


def store(key: str, value: object) -> tuple[str, dict[str, Any]]:
    return "store_execution_result", {"key": key, "value": value}


def test_what_is_stored_is_a_variable_of_later_code_and_is_replaced_by_its_key() -> None:
    *_, seen, context = calls(
        store("prices", [1, 2, 3]),
        store("name", "first"),
        store("name", "second"),
        ("execute_python", {"code": "sum(stored['prices']), stored['name']"}),
        ("get_execution_context", {}),
    )
    assert seen.structured_content["result"] == [6, "second"]
    assert context.structured_content["stored"] == {"prices": [1, 2, 3], "name": "second"}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (store("", 1), "key must be a text of 1 to 100 characters."),
        (store("k" * 101, 1), "key must be a text of 1 to 100 characters."),
        (store("\ud800", 1), "key must be a text of 1 to 100 characters."),
        (store("k", "x" * 10**6), "The stored results would have more than 1000000 bytes."),
        (("execute_python", {"code": "#" * 100_001}), "The code has more than 100000 characters."),
        (("process_mcp_data", {"code": "1", "data": "x" * 10**6}), "data has more than 1000000 bytes."),
    ],
)
def test_what_is_too_large_is_refused(wanted: tuple[str, dict[str, Any]], message: str) -> None:
    (done,) = calls(wanted)
    assert done.is_error
    assert text_of(done) == message


def test_data_of_another_tool_is_the_variable_data() -> None:
    bars = {"ticker": "A", "bars": [{"close": 2.0}, {"close": 3.0}]}
    done = call("python", "process_mcp_data", data=bars, code="max(bar['close'] for bar in data['bars'])")
    assert done.structured_content == {"result": 3.0, "output": ""}


def test_a_pipeline_takes_its_steps_in_order_and_counts_what_each_leaves() -> None:
    steps = [
        {"operation": "filter", "expression": "item['price'] > 1"},
        {"operation": "sort", "expression": "-item['price']"},
        {"operation": "map", "expression": "item['name']"},
        {"operation": "apply", "expression": "'-'.join(data)"},
    ]
    data = [{"name": name, "price": price} for name, price in (("a", 1), ("b", 2), ("c", 3))]
    done = call("python", "create_data_pipeline", data=data, steps=steps)
    assert done.structured_content == {
        "steps": [
            {"operation": "filter", "count": 2},
            {"operation": "sort", "count": 2},
            {"operation": "map", "count": 2},
            {"operation": "apply", "count": None},
        ],
        "result": "c-b",
    }


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("item['cost']", "step 2 (map): KeyError: cost"),
        ("item +", "step 2 (map): SyntaxError: "),
        ("item\n+ 1", "step 2 (map): expression must be one line."),
        ("counts.clear() or 1", "The steps changed `counts`, which is not theirs."),
    ],
)
def test_a_failing_step_is_named(expression: str, message: str) -> None:
    steps = [{"operation": "filter", "expression": "True"}, {"operation": "map", "expression": expression}]
    done = call("python", "create_data_pipeline", data=[{"a": 1}], steps=steps)
    assert done.is_error
    assert text_of(done).replace("'", "").startswith(message)  # one sandbox quotes a key, the other does not


def test_price_figures_are_those_worked_out_by_hand() -> None:
    # Returns: 110/100 - 1 = 0.1, 99/110 - 1 = -0.1, 118.8/99 - 1 = 0.2; their mean is 0.2/3, their sample
    # variance ((1/30)^2 + (1/6)^2 + (2/15)^2) / 2 = 7/300, a year of 3 periods: sqrt(7/100) = 0.264575.
    # The largest fall is from the peak of 110 to 99: 0.1.
    done = call("python", "analyze_financial_data", prices=[100, 110, 99, 118.8], periods_per_year=3)
    assert done.structured_content == {
        "n_prices": 4,
        "total_return": 0.188,
        "mean_return": 0.066667,
        "best_return": 0.2,
        "worst_return": -0.1,
        "annual_volatility": 0.264575,
        "max_drawdown": 0.1,
    }


@pytest.mark.parametrize("prices", [[1, 2], [1, 0, 2], [1, -2, 3], [1, 2, float("inf")]])
def test_a_series_without_returns_is_refused(prices: list[float]) -> None:
    assert call("python", "analyze_financial_data", prices=prices).is_error


async def test_every_episode_of_a_pool_has_its_own_results() -> None:
    async with ToolPool(builtin_servers(["python"])) as pool:
        assert list(pool.tools) == [
            "execute_python",
            "process_mcp_data",
            "store_execution_result",
            "get_execution_context",
        ]
        one, two = pool.session(), pool.session()
        kept = ToolCall(id="1", tool="store_execution_result", arguments={"key": "k", "value": 1})
        assert not (await one.call(kept)).is_error
        for session, expected in ((one, {"k": 1}), (two, {})):
            look = ToolCall(id="2", tool="execute_python", arguments={"code": "stored"})
            seen = await session.call(look)
            assert seen.structured is not None, seen.content
            assert seen.structured["result"] == expected
            await session.close()


async def test_over_http_the_sandbox_is_announced_and_the_limited_set_served() -> None:
    with over_http("python", "--limited") as (url, said):
        assert said.startswith("python: code runs in the ")
        async with Client(url) as client:
            assert client.instructions and "sandbox" in client.instructions
            assert len((await client.list_tools()).tools) == 4
            done = await client.call_tool("execute_python", {"code": "6 * 7"})
            assert done.structured_content["result"] == 42


async def test_where_a_subset_of_python_runs_the_tools_say_so() -> None:
    async with ToolPool(builtin_servers(["python"], sandbox=SandboxKind.MONTY)) as pool:
        for name in ("execute_python", "process_mcp_data"):
            assert "Python (subset)" in pool.tools[name].description


def test_a_sandbox_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    said = refused(mcpagent("serve", "python", "--sandbox", "bubblewrap", env={"PATH": str(tmp_path)}))
    assert said.startswith(
        "error: --sandbox: no sandbox to run code in: bubblewrap: bubblewrap (bwrap) is not installed\n"
    )

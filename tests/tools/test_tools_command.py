"""`mcpagent tools`, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mcpagent.core.tools import ToolResult, ToolSpec
from tests.tools.support import ECHO_SCRIPT


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    entry = {"command": sys.executable, "args": [str(ECHO_SCRIPT)], "autoApprove": []}
    path.write_text(json.dumps({"mcpServers": {"my.echo": entry}}))
    return path


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcpagent.cli.main", "tools", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_list_prints_one_json_document_of_tool_specs(servers: Path) -> None:
    done = _run("list", "--servers", servers, "--json")
    specs = {spec.name: spec for spec in map(ToolSpec.model_validate, json.loads(done.stdout))}
    assert done.returncode == 0
    assert specs["echo"].dotted == "my.echo.echo"
    assert specs["echo"].annotations.read_only and not specs["write_down"].annotations.read_only
    assert "unknown key 'autoApprove' is ignored" in done.stderr


def test_list_without_json_is_a_table_of_the_builtin_tools() -> None:
    done = _run("list")
    assert done.returncode == 0
    assert "polygon.polygon_get_aggs" in done.stdout
    assert "send_slack_message" in done.stdout


def test_call_prints_the_text_that_a_model_would_see(servers: Path) -> None:
    done = _run("call", "my.echo.echo", '{"text": "héllo"}', "--servers", servers)
    assert (done.returncode, done.stdout) == (0, "héllo\n")


def test_a_tool_error_exits_1_with_its_text(servers: Path) -> None:
    done = _run("call", "my.echo.refuse", "--servers", servers)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not today" in done.stderr


def test_call_prints_the_result_record_as_json_also_when_the_tool_fails() -> None:
    done = _run("call", "polygon.polygon_get_previous_close", '{"ticker": "NO-SUCH"}', "--json")
    result = ToolResult.model_validate_json(done.stdout)
    assert done.returncode == 1
    assert result.is_error and "NO-SUCH" in result.content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["call", "polygn.polygon_get_aggs"], "Did you mean polygon?"),
        (["call", "polygon.polygon_get_agg"], "Did you mean polygon.polygon_get_aggs?"),
        (["call", "polygon_get_aggs"], "names no server"),
        (["call", "polygon.polygon_get_aggs", "{ticker}"], "not valid JSON"),
        (["call", "polygon.polygon_get_aggs", "[1]"], "must be a JSON object"),
        (["list", "--servers", "nowhere.json"], "nowhere.json: cannot read it"),
    ],
)
def test_what_the_user_must_fix_exits_2_with_one_message(arguments: list[str], message: str) -> None:
    done = _run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""

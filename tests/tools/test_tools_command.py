"""`mcpagent tools`, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mcpagent.core.tools import ToolResult, ToolSpec, catalog_hash
from tests.running import Command, mcpagent, refused
from tests.tools.support import ECHO_SCRIPT
from tests.tools.wild import SCRIPTS

ECHO = {"command": sys.executable, "args": [str(ECHO_SCRIPT)]}


def _file(tmp_path: Path, **servers: object) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    return _file(tmp_path, **{"my.echo": {**ECHO, "autoApprove": []}})


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return mcpagent("tools", *arguments)


def test_list_prints_one_json_document_of_tool_specs(servers: Path) -> None:
    done = _run("list", "--servers", servers, "--json")
    specs = {spec.name: spec for spec in map(ToolSpec.model_validate, json.loads(done.stdout))}
    assert done.returncode == 0
    assert specs["echo"].dotted == "my.echo.echo"
    assert specs["echo"].annotations.read_only and not specs["write_down"].annotations.read_only
    assert "unknown key 'autoApprove' is ignored" in done.stderr
    assert catalog_hash(specs.values()) in done.stderr


def test_list_without_json_shows_the_builtin_tools_with_their_arguments_and_effect() -> None:
    done = _run("list")
    assert done.returncode == 0
    assert "  reads     polygon.polygon_get_aggs(ticker, start_date, end_date, [frequency])\n" in done.stdout
    assert "  writes    slack.send_slack_message(" in done.stdout


def test_a_server_that_does_not_start_hides_no_other_and_exits_1(tmp_path: Path) -> None:
    dying = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('no licence')"]}
    file = _file(tmp_path, gone={"command": "no-such-program"}, echo=ECHO, dying=dying)
    done = _run("list", "--servers", file)
    assert done.returncode == 1
    assert "  reads     echo.echo(text)\n" in done.stdout
    assert "gone: did not start" in done.stdout and "dying: did not start" in done.stdout
    assert "error: server 'gone' did not start: no such command" in done.stderr
    assert " tools of 1 of 3 servers\n" in done.stdout
    assert "no licence" in done.stderr, "the last words of the server"
    command = shlex.join([sys.executable, *dying["args"]])
    done = mcpagent("gen-data", "--explore", "--servers", file, "--out", tmp_path / "made")
    assert f"Run it in a shell to see why: no-such-program; {command}" in refused(done)
    as_json = _run("list", "--servers", file, "--json")
    assert as_json.returncode == 1
    assert {spec["server"] for spec in json.loads(as_json.stdout)} == {"echo"}


def test_list_says_how_a_model_sees_tools_that_share_a_name(tmp_path: Path) -> None:
    file = _file(tmp_path, one=ECHO, two=ECHO)
    done = _run("list", "--servers", file)
    assert "  reads     one.echo(text) -> one__echo\n" in done.stdout
    assert "a model sees two.echo as two__echo\n" in _run("list", "--servers", file, "--json").stderr


def test_list_says_how_a_model_behind_an_api_sees_a_tool_whose_name_apis_do_not_take(tmp_path: Path) -> None:
    server = "from mcp.server import MCPServer\nserver = MCPServer('odd')\n"
    server += "server.add_tool(lambda: '', name='calendar.listEvents')\nserver.run()\n"
    file = _file(tmp_path, odd={"command": sys.executable, "args": ["-c", server]})
    done = _run("list", "--servers", file)
    match = re.search(r"odd\.calendar\.listEvents\(\) => (calendar_listEvents_[0-9a-f]{8})\n", done.stdout)
    assert match is not None and "behind an API or a bridge" in done.stdout
    told = f"a model behind an API sees odd.calendar.listEvents as {match[1]}\n"
    assert told in _run("list", "--servers", file, "--json").stderr


def test_call_prints_the_text_that_a_model_would_see(servers: Path) -> None:
    done = _run("call", "my.echo.echo", '{"text": "héllo"}', "--servers", servers)
    assert (done.returncode, done.stdout) == (0, "héllo\n")


def test_a_tool_error_exits_1_with_its_text(servers: Path) -> None:
    done = _run("call", "my.echo.refuse", "--servers", servers)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not today" in done.stderr


def test_a_call_ends_at_its_timeout(servers: Path) -> None:
    done = _run("call", "my.echo.hang", "--timeout", "0.2", "--servers", servers, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["failure"] == "timeout"


def test_wrong_arguments_are_answered_with_the_signature() -> None:
    done = _run("call", "polygon.polygon_get_news", "{}")
    assert done.returncode == 1
    assert "the tool is polygon.polygon_get_news(ticker, [limit])" in done.stderr


def test_call_prints_the_result_record_as_json_also_when_the_tool_fails() -> None:
    done = _run("call", "polygon.polygon_get_previous_close", '{"ticker": "NO-SUCH"}', "--json")
    result = ToolResult.model_validate_json(done.stdout)
    assert done.returncode == 1
    assert result.is_error and "NO-SUCH" in result.content


def test_bench_counts_every_call_and_measures_those_that_succeed() -> None:
    done = _run("bench", "polygon.polygon_get_market_status", "--calls", "50", "--concurrency", "4", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert (document["calls"], document["planned"], document["failures"]) == (50, 50, {})
    assert 0 < document["latency_s"]["p50"] <= document["latency_s"]["p95"] <= document["wall_s"]
    assert document["calls_per_s"] == pytest.approx(50 / document["wall_s"])
    assert document["cpu_s_per_call"] > 0


def test_bench_counts_failures_by_kind_and_exits_1(servers: Path) -> None:
    done = _run("bench", "my.echo.refuse", "--servers", servers, "--calls", "5", "--allow-writes", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert document["failures"] == {"tool_error": 5}
    assert "not today" in document["first_failure"]
    assert document["latency_s"] == {"p50": None, "p95": None}


def test_bench_refuses_effects_that_were_not_allowed(servers: Path) -> None:
    said = refused(_run("bench", "my.echo.write_down", '{"note": "n"}', "--servers", servers))
    assert "my.echo.write_down does not say that it is read-only" in said and "--allow-writes" in said


def test_an_interrupted_bench_shows_what_it_measured(tmp_path: Path) -> None:
    """The server tells over a named pipe that it was called, so the interrupt comes amid the calls."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    script = tmp_path / "server.py"
    script.write_text(
        "from mcp.server import MCPServer\nserver = MCPServer('slow')\ncalls = 0\n"
        "@server.tool()\nasync def work() -> str:\n"
        "    global calls\n    calls += 1\n"
        f"    if calls == 20:\n        open({str(begun)!r}, 'w').close()\n"
        "    return 'ok'\n"
        "server.run()\n"
    )
    file = _file(tmp_path, slow={"command": sys.executable, "args": [str(script)]})
    many = ("--calls", "1000000", "--concurrency", "1", "--allow-writes")
    command = ("tools", "bench", "slow.work", "--servers", file, *many, "--json")
    with Command(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        begun.read_text()  # returns when the server has opened and closed its end
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert 19 <= json.loads(stdout)["calls"] < 1_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["call", "polygn.polygon_get_aggs"], "Did you mean polygon?"),
        (["call", "polygon.polygon_get_agg"], "Did you mean polygon.polygon_get_aggs?"),
        (["call", "polygon_get_aggs"], "names no server"),
        (["call", "polygon.polygon_get_aggs", "{ticker}"], "not valid JSON"),
        (["call", "polygon.polygon_get_aggs", "[1]"], "must be a JSON object"),
        (["call", "polygon.polygon_get_aggs", "[" * 100_000], "cannot be read"),
    ],
)
def test_what_the_user_must_fix_exits_2_with_one_message(arguments: list[str], message: str) -> None:
    assert message in refused(_run(*arguments))


SILENT = "import sys\nfor line in sys.stdin: pass"
_REMOTE = {"type": "object", "properties": {"a": {"$ref": "http://192.0.2.1/x"}}}
MALICIOUS = [
    {"name": "fail", "inputSchema": {"type": "object", "properties": {"text": {"pattern": "^(a+)+$"}}}},
    {"name": "endless", "inputSchema": {"type": "object", "$ref": "#"}},
    {"name": "remote", "inputSchema": _REMOTE},
    {"name": "hang", "inputSchema": {"type": "object"}},
]


@pytest.fixture
def malicious(tmp_path: Path) -> Path:
    arguments = [str(SCRIPTS / "lister.py"), json.dumps([MALICIOUS])]
    return _file(tmp_path, bad={"command": sys.executable, "args": arguments})


def test_a_server_that_does_not_answer_its_start_is_named_while_it_is_waited_for(tmp_path: Path) -> None:
    servers = _file(tmp_path, quiet={"command": sys.executable, "args": ["-c", SILENT]})
    with Command("tools", "list", "--servers", servers, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
    assert "server 'quiet' has not answered for 5 s" in said


def test_malicious_schemas_leave_their_tools_out_and_slow_patterns_do_not_hold_up_a_call(
    malicious: Path,
) -> None:
    done = _run("list", "--servers", malicious, "--json")
    assert [spec["name"] for spec in json.loads(done.stdout)] == ["fail", "hang"]
    assert "bad.endless is left out" in done.stderr and "bad.remote is left out" in done.stderr
    arguments = json.dumps({"text": "a" * 40 + "b"})
    called = _run("call", "bad.fail", arguments, "--servers", malicious, "--json")
    assert json.loads(called.stdout)["failure"] == "invalid_arguments"


def test_a_call_of_a_malicious_server_ends_at_once_with_sigterm(malicious: Path) -> None:
    words = ("tools", "call", "bad.hang", "{}", "--servers", malicious)
    with Command(*words, stderr=subprocess.PIPE, text=True) as process:
        assert "left out" in process.stderr.readline()  # it is started
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)

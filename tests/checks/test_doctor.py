"""What `mcpagent doctor` says of this machine, and of machines with something wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mcpagent.checks.doctor import check_group, check_keys, check_outputs, doctor
from mcpagent.core.records import CheckResult, CheckStatus
from tests.running import mcpagent
from tests.tools.support import ECHO_SCRIPT


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def _by_name(checks: list[CheckResult]) -> dict[str, CheckResult]:
    return {check.name: check for check in checks}


def _mcp_json(folder: Path, servers: dict[str, object]) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def _echo(*arguments: str) -> dict[str, object]:
    return {"command": sys.executable, "args": [str(ECHO_SCRIPT), *arguments]}


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return mcpagent("doctor", *arguments, env=environment)


@pytest.mark.system
def test_a_working_installation_passes_and_no_key_is_ever_shown() -> None:
    done = _run("--json", FMP_API_KEY="sekret-value")
    assert done.returncode == 0, done.stderr
    checks = _by_name([CheckResult.model_validate(item) for item in json.loads(done.stdout)])
    for name in ("python", "packages", "extra hf", "server polygon", "server slack", "key fmp"):
        assert checks[name].status is CheckStatus.PASS, checks[name]
    assert checks["key tavily"].status is CheckStatus.SKIP
    assert [check.name for check in check_keys(["mine", "fmp"])] == ["key fmp"], "of what is in use"
    assert "sekret" not in done.stdout + done.stderr


def test_a_server_that_does_not_start_fails_alone_and_its_command_is_the_remedy(tmp_path: Path) -> None:
    path = _mcp_json(tmp_path, {"echo": _echo(), "gone": {"command": "no-such-command", "args": ["-x"]}})
    done = _run("--servers", str(path), COLUMNS="200")
    assert done.returncode == 1
    failed, remedy = next(pair for pair in pairwise(done.stdout.splitlines()) if pair[0].startswith("fail"))
    assert failed.startswith("fail  server gone: ") and remedy.strip() == "no-such-command -x"
    checks = _by_name(doctor(servers=path))
    assert checks["server echo"].status is CheckStatus.PASS
    assert "tools in" in checks["server echo"].detail
    assert checks["server gone"].status is CheckStatus.FAIL
    assert checks["server gone"].remedy == "no-such-command -x"


def test_a_broken_mcp_json_is_a_failed_check_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {\n"one": {"command" 3}}}')
    check = _by_name(doctor(servers=path))["servers"]
    assert check.status is CheckStatus.FAIL
    assert "mcp.json:2" in check.detail
    assert check.remedy == f"vi {path}"


def test_what_was_skipped_in_an_mcp_json_is_said(tmp_path: Path) -> None:
    path = _mcp_json(tmp_path, {"echo": _echo(), "off": {"command": "x", "disabled": True}})
    assert "server 'off' is disabled" in _by_name(doctor(servers=path))["servers"].detail


def test_a_file_that_is_not_there_is_the_users_to_fix() -> None:
    done = _run("--servers", "absent.json", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["where"] == "absent.json"
    assert "Traceback" not in done.stderr


def test_a_version_out_of_range_fails_with_the_install_command_of_this_python() -> None:
    group = [Requirement("pydantic>=99"), Requirement("rich")]
    base = check_group("packages", group, use="all", missing=CheckStatus.FAIL)
    assert base.status is CheckStatus.FAIL
    assert "pydantic" in base.detail and "is not >=99" in base.detail
    assert base.remedy is not None
    assert base.remedy.startswith(f"{sys.executable} -m pip install")
    assert base.remedy.endswith("'pydantic>=99'")


@pytest.mark.parametrize("weight", [CheckStatus.FAIL, CheckStatus.SKIP])
def test_a_missing_package_weighs_what_its_extra_weighs(weight: CheckStatus) -> None:
    absent = [Requirement("plotly"), Requirement("no-such-package")]
    check = check_group("extra x", absent, use="all", missing=weight)
    assert check.status is weight
    assert "no-such-package is not installed" in check.detail
    assert check_group("extra x", absent[:1], use="all", missing=weight).status is CheckStatus.PASS


def test_an_extra_of_another_platform_is_skipped() -> None:
    check = check_group("extra vllm", [], use="all", missing=CheckStatus.FAIL)
    assert check.status is CheckStatus.SKIP
    assert check.remedy is None


def test_keys_in_a_dotenv_file_count_and_an_empty_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("MASSIVE_API_KEY=abc\n")
    monkeypatch.delenv("POLYGON_API_KEY", raising=False)
    monkeypatch.setenv("TAVILY_API_KEY", "")
    checks = _by_name(check_keys())
    assert checks["key polygon"].detail == "MASSIVE_API_KEY is set"
    assert checks["key tavily"].status is CheckStatus.SKIP


def test_a_file_in_the_place_of_the_outputs_fails(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("")
    check = check_outputs(Path("outputs"))
    assert check.status is CheckStatus.FAIL
    assert check.remedy == f"mv {tmp_path / 'outputs'} {tmp_path / 'outputs'}.old"


def test_outputs_need_not_exist_yet(tmp_path: Path) -> None:
    assert check_outputs(tmp_path / "a" / "b").status is CheckStatus.PASS
    assert not (tmp_path / "a").exists()

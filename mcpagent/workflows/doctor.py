"""`mcpagent doctor`: everything that a run needs from this machine, each failure with what fixes it."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcpagent.console import counted
from mcpagent.core.metrics import CheckResult, CheckStatus
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.storage.jsonl import find_dataset
from mcpagent.synth.validate import validate_dataset
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import ServerConfig, StdioServer, builtin_servers, load_servers
from mcpagent.workflows.doctor_machine import (
    check_device,
    check_hub,
    check_keys,
    check_outputs,
    check_packages,
    check_python,
)
from mcpagent.workflows.doctor_model import check_model


def doctor(
    *,
    servers: Path | None = None,
    data: Path | None = None,
    outputs: Path = Path("outputs"),
    model: str | None = None,
    tool_format: str = "auto",
    hub: bool = True,
) -> list[CheckResult]:
    """Check everything and return the results in a fixed order.

    `servers` is an mcp.json (None: the built-in servers, as child processes), `data` a dataset (None: the
    default ones, where they exist), `model` a hub id or folder whose tokens are to be checked with the tools
    of the servers, `tool_format` the dialect it is to call them in, `hub` whether the hub is asked to answer.
    Raises UserError only where one of the two files does not exist.
    """
    for path in (servers, data):
        if path is not None and not path.is_file():
            raise UserError("there is no such file", where=str(path))
    started = check_servers(servers)
    return [
        check_python(),
        *check_packages(),
        check_device(),
        *started.checks,
        *check_keys(),
        check_hub(ask=hub),
        *_check_data(data, catalog=started.tools, servers=servers),
        check_outputs(outputs),
        *([] if model is None else check_model(model, tool_format=tool_format, catalog=started.tools or ())),
    ]


@dataclass(frozen=True)
class Started:
    """What came of starting the servers; `tools` is None where one of them did not start."""

    checks: list[CheckResult]
    tools: list[ToolSpec] | None


def check_servers(path: Path | None) -> Started:
    """Start the servers of the mcp.json at `path` (None: the built-in ones), each with a check of its own."""
    configs: Sequence[ServerConfig] = builtin_servers(BUILTIN_NAMES, limited=False, transport="stdio")
    checks: list[CheckResult] = []
    if path is not None:
        try:
            loaded = load_servers(path)
        except UserError as error:
            return Started([_failed("servers", error, remedy=f"vi {shlex.quote(str(path))}")], None)
        configs = loaded.servers
        detail = "; ".join([f"{path}: {len(configs)} in use", *loaded.notes])
        checks.append(CheckResult(name="servers", status=CheckStatus.PASS, detail=detail))
    answers = asyncio.run(_start_all(configs))
    checks += [check for check, _ in answers]
    is_whole = all(specs is not None for _, specs in answers)
    return Started(checks, [spec for _, specs in answers for spec in specs or ()] if is_whole else None)


async def _start_all(configs: Sequence[ServerConfig]) -> list[tuple[CheckResult, list[ToolSpec] | None]]:
    return await asyncio.gather(*(_start(config) for config in configs))


async def _start(config: ServerConfig) -> tuple[CheckResult, list[ToolSpec] | None]:
    """Start one server and list its tools; it is stopped again. No tools where it does not start."""
    name = f"server {config.name}"
    notes: list[str] = []
    begun = time.perf_counter()
    try:
        async with ToolPool([config], on_note=notes.append) as pool:
            seconds = time.perf_counter() - begun
            tools = list(pool.tools.values())
            detail = f"{counted(len(tools), 'tool')} in {seconds:.1f} s, catalog {pool.catalog_hash[:12]}"
            detail = "; ".join([detail, *notes])
    except UserError as error:
        command = _shell_command(config) if isinstance(config, StdioServer) else None
        return _failed(name, error, remedy=command), None
    if not tools:
        detail = "; ".join([f"no tools, in {seconds:.1f} s", *notes])
        return CheckResult(name=name, status=CheckStatus.WARN, detail=detail), tools
    return CheckResult(name=name, status=CheckStatus.PASS, detail=detail), tools


def _shell_command(config: StdioServer) -> str:
    """What starts the server in a shell; a secret is named as the variable that holds it."""
    words = (config.command, *config.args)
    return " ".join(config.written or (shlex.quote(SECRETS.text(word)) for word in words))


def _check_data(
    path: Path | None, *, catalog: Sequence[ToolSpec] | None, servers: Path | None
) -> list[CheckResult]:
    if path is not None:
        return [_check_dataset("data", path, catalog=catalog, servers=servers)]
    return [
        _check_default("train", catalog=catalog, servers=servers),
        _check_default("validation", catalog=catalog, servers=servers),
    ]


def _check_default(
    split: Literal["train", "validation"], *, catalog: Sequence[ToolSpec] | None, servers: Path | None
) -> CheckResult:
    name = f"data {split}"
    try:
        path = find_dataset(None, split=split)
    except UserError as error:
        # No failure: quickstart makes its own, and every command takes --data or --set data.train.
        return CheckResult(
            name=name, status=CheckStatus.WARN, detail=error.message, remedy="mcpagent gen-data"
        )
    return _check_dataset(name, path, catalog=catalog, servers=servers)


def _check_dataset(
    name: str, path: Path, *, catalog: Sequence[ToolSpec] | None, servers: Path | None
) -> CheckResult:
    option = ["--servers", str(servers)] if servers is not None else []
    remedy = shlex.join(["mcpagent", "data", "validate", str(path), *option])
    try:
        report = validate_dataset(path, catalog=catalog)
    except UserError as error:
        return _failed(name, error, remedy=remedy)
    if report.valid == report.records:
        detail = f"{path}: {report.records} valid tasks" + ("" if catalog else "; tool names not checked")
        return CheckResult(name=name, status=CheckStatus.PASS, detail=detail)
    first = report.findings[0]
    return CheckResult(
        name=name,
        status=CheckStatus.FAIL,
        detail=f"{report.rejects.total()} of {report.records} records are wrong, the first at {first.where}: "
        f"{first.message}",
        remedy=remedy,
    )


def _failed(name: str, error: UserError, *, remedy: str | None) -> CheckResult:
    detail = f"{error.where}: {error.message}" if error.where else error.message
    return CheckResult(name=name, status=CheckStatus.FAIL, detail=detail, remedy=remedy)

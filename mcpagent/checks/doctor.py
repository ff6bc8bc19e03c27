"""`mcpagent doctor`: everything that a run needs from this machine, each failure with what fixes it."""

from __future__ import annotations

import asyncio
import importlib.metadata as metadata
import os
import platform
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
from dotenv import dotenv_values
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from mcpagent.console import counted
from mcpagent.core.records import CheckResult, CheckStatus
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import ToolSpec, chat_schema
from mcpagent.errors import UserError
from mcpagent.servers.names import BUILTIN_NAMES, KEY_NAMES
from mcpagent.storage.checkpoints import find_model
from mcpagent.storage.datasets import find_dataset
from mcpagent.storage.packages import installed_version, pip_install, require
from mcpagent.synth.datasets.validate import validate_dataset
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import ServerConfig, StdioServer, builtin_servers, load_servers

if TYPE_CHECKING:
    from mcpagent.models.tokens import TokenDrift


def check_model(name: str, *, tool_format: str, catalog: Sequence[ToolSpec]) -> list[CheckResult]:
    """The token fidelity gate, as at the start of a run, and how much a full rendering would differ. The
    first failure ends it: nothing after it could be told."""
    try:
        require("hf", use="checking a model")
    except UserError as error:
        return [_model_failed("model", error)]
    from mcpagent.env.tool_format import gold_conversation, open_renderer
    from mcpagent.models.load import load_config, load_tokenizer
    from mcpagent.models.logits import logit_transform
    from mcpagent.models.tokens import measure_drift, refuse_forgery

    checks: list[CheckResult] = []
    try:
        checkpoint = find_model(name)
        place = name if checkpoint is None else str(checkpoint.path)
        tokenizer: Any = load_tokenizer(place)
        why = f" ({checkpoint.why})" if checkpoint is not None and checkpoint.why else ""
        checks.append(_passed("model tokenizer", f"{place}{why}: {len(tokenizer)} tokens"))
        renderer = open_renderer(tokenizer, name=name, tool_format=tool_format)
        how = "in the system message" if renderer.instruction is not None else "by its template"
        checks += [
            _passed("model template", "what follows a turn does not depend on the turns before it"),
            _passed("model tool calls", f"{renderer.tool_format}, taught {how}; a call reads back as it was"),
            _passed(
                "model injection", f"{refuse_forgery(renderer)} control tokens stay text in what tools say"
            ),
        ]
        schemas = [chat_schema(tool.name, tool) for tool in catalog]
        checks.append(_drift(measure_drift(renderer, *gold_conversation(renderer, schemas))))
        after_head = logit_transform(load_config(place))
        checks.append(_passed("model logits", f"the output head's, {after_head or 'unchanged'}"))
    except UserError as error:
        checks.append(_model_failed("model", error))
    return checks


def _passed(name: str, detail: str) -> CheckResult:
    return CheckResult(name=name, status=CheckStatus.PASS, detail=detail)


def _model_failed(name: str, error: UserError) -> CheckResult:
    return CheckResult(name=name, status=CheckStatus.FAIL, detail=error.message, remedy=error.remedy)


def _drift(drift: TokenDrift) -> CheckResult:
    """Not a failure: what was sampled is kept and trained on. But a server that is sent messages renders
    each request anew, and then the model reads other tokens than it was trained on."""
    detail = (
        f"{drift.changed} of {drift.kept} tokens ({drift.share:.1%}) of three turns are not "
        "what its whole rendering gives"
    )
    if not drift.changed:
        return _passed("model drift", detail)
    remedy = "serve the trained model from token ids, or with a template that keeps earlier thoughts"
    return CheckResult(name="model drift", status=CheckStatus.WARN, detail=detail, remedy=remedy)


_HUB_TIMEOUT_S = 2.0
_LITTLE_MEMORY_GB = 2.0  # the peak of `mcpagent quickstart`
_LITTLE_DISK_GB = 2.0
_NO_DISK_GB = 0.2


@dataclass(frozen=True, kw_only=True)
class Extra:
    """A group of optional packages. `missing` is how bad it is to lack them, `use` what needs them."""

    name: str
    use: str
    missing: CheckStatus


EXTRAS = (
    Extra(name="hf", use="train, quickstart and eval need it", missing=CheckStatus.FAIL),
    Extra(name="report", use="quickstart and report need it", missing=CheckStatus.FAIL),
    Extra(name="gym", use="env check and SkyRL need it", missing=CheckStatus.WARN),
    Extra(name="vllm", use="optional: faster rollouts on a GPU", missing=CheckStatus.SKIP),
    Extra(name="fused", use="optional: updates on CUDA that keep less", missing=CheckStatus.SKIP),
)


def check_python() -> CheckResult:
    """Python against what the installed mcpagent asks for."""
    version = platform.python_version()
    supported = SpecifierSet(metadata.metadata("mcpagent")["Requires-Python"])
    is_good = supported.contains(version, prereleases=True)
    return CheckResult(
        name="python",
        status=CheckStatus.PASS if is_good else CheckStatus.FAIL,
        detail=f"{version} at {sys.executable}" + ("" if is_good else f"; mcpagent needs {supported}"),
        remedy=None if is_good else "python3.11 -m venv .venv",
    )


def check_packages(requirements: Sequence[str] | None = None) -> list[CheckResult]:
    """The base packages and each extra, against the ranges in mcpagent's metadata (or `requirements`)."""
    parsed = [Requirement(text) for text in requirements or metadata.requires("mcpagent") or ()]
    base = [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]
    base_check = _check_group("packages", base, use="every command needs them", missing=CheckStatus.FAIL)
    return [base_check, *(_check_extra(extra, parsed) for extra in EXTRAS)]


def check_device() -> CheckResult:
    """Where models would run, with what is free of its memory."""
    if installed_version("torch") is None or installed_version("psutil") is None:
        return CheckResult(name="device", status=CheckStatus.SKIP, detail="not known without the extra hf")
    import psutil
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    free_gb = psutil.virtual_memory().available / 1e9
    machine = f"cpu, {cores} cores, {free_gb:.1f} GB of memory free"
    if torch.cuda.is_available():
        cards = [_cuda_card(index) for index in range(torch.cuda.device_count())]
        return CheckResult(name="device", status=CheckStatus.PASS, detail=f"{'; '.join(cards)}; {machine}")
    if torch.backends.mps.is_available():
        machine = f"mps; {machine}"
    is_little = free_gb < _LITTLE_MEMORY_GB
    return CheckResult(
        name="device",
        status=CheckStatus.WARN if is_little else CheckStatus.PASS,
        detail=machine + (f"; quickstart needs {_LITTLE_MEMORY_GB:.0f} GB" if is_little else ""),
        remedy="ps aux | sort -nrk 6 | head" if is_little else None,
    )


def check_keys() -> list[CheckResult]:
    """Which API keys are set, in the environment or in `.env`; a value is never shown."""
    variables = {**dotenv_values(Path.cwd() / ".env"), **os.environ}
    return [_check_key(service, names, variables) for service, names in KEY_NAMES.items()]


def check_hub(*, ask: bool = True) -> CheckResult:
    """Whether models can be downloaded; unless `ask`, nothing leaves the machine. Takes at most 2 s, also
    where name resolution hangs."""
    if not ask:
        return CheckResult(name="hub", status=CheckStatus.SKIP, detail="not asked; --hub asks it")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return CheckResult(
            name="hub",
            status=CheckStatus.SKIP,
            detail="offline by HF_HUB_OFFLINE; name models by their folder",
        )
    if installed_version("huggingface_hub") is None:
        return CheckResult(name="hub", status=CheckStatus.SKIP, detail="not known without the extra hf")
    from huggingface_hub.constants import ENDPOINT

    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    answered: list[bool] = []
    # A thread, because no timeout covers name resolution.
    asking = threading.Thread(target=lambda: answered.append(_answers(endpoint)), daemon=True)
    asking.start()
    asking.join(_HUB_TIMEOUT_S)
    if answered == [True]:
        return CheckResult(name="hub", status=CheckStatus.PASS, detail=f"{endpoint} answers")
    return CheckResult(
        name="hub",
        status=CheckStatus.WARN,
        detail=f"{endpoint} does not answer: name models by their folder (the embedded one needs no hub)",
        remedy="export HF_HUB_OFFLINE=1",
    )


def check_outputs(folder: Path) -> CheckResult:
    """Whether runs can be written to `folder`, which need not exist yet, and how much room there is."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        return CheckResult(
            name="outputs",
            status=CheckStatus.FAIL,
            detail=f"{existing} is a file, but runs need a folder there",
            remedy=shlex.join(["mv", str(existing), f"{existing}.old"]),
        )
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return CheckResult(
            name="outputs",
            status=CheckStatus.FAIL,
            detail=f"cannot write to {existing}: {error.strerror}",
            remedy=f"chmod u+w {shlex.quote(str(existing))}",
        )
    free_gb = shutil.disk_usage(existing).free / 1e9
    status = CheckStatus.PASS
    if free_gb < _LITTLE_DISK_GB:
        status = CheckStatus.FAIL if free_gb < _NO_DISK_GB else CheckStatus.WARN
    return CheckResult(
        name="outputs",
        status=status,
        detail=f"{folder} can be written, {free_gb:.1f} GB free",
        remedy=None if status is CheckStatus.PASS else f"du -sh {shlex.quote(str(folder))}/*",
    )


def _check_extra(extra: Extra, requirements: Sequence[Requirement]) -> CheckResult:
    def applies(requirement: Requirement) -> bool:
        marker = requirement.marker
        return (
            marker is not None
            and marker.evaluate({"extra": extra.name})
            and not marker.evaluate({"extra": ""})
        )

    applicable = [requirement for requirement in requirements if applies(requirement)]
    return _check_group(f"extra {extra.name}", applicable, use=extra.use, missing=extra.missing)


def _check_group(
    name: str, requirements: Sequence[Requirement], *, use: str, missing: CheckStatus
) -> CheckResult:
    if not requirements:
        return CheckResult(name=name, status=CheckStatus.SKIP, detail=f"not for this platform ({use})")
    versions = {requirement.name: installed_version(requirement.name) for requirement in requirements}
    absent = [r for r in requirements if versions[r.name] is None]
    wrong = [
        r for r in requirements if (v := versions[r.name]) and not r.specifier.contains(v, prereleases=True)
    ]
    shown = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
    if not absent and not wrong:
        return CheckResult(name=name, status=CheckStatus.PASS, detail=shown)
    problems = [f"{r.name} is not installed" for r in absent]
    problems += [f"{r.name} {versions[r.name]} is not {r.specifier}" for r in wrong]
    return CheckResult(
        name=name,
        status=CheckStatus.FAIL if wrong else missing,
        detail=f"{', '.join(problems)} ({use})",
        remedy=pip_install(*(f"{r.name}{r.specifier}" for r in (*absent, *wrong))),
    )


def _check_key(service: str, names: Sequence[str], variables: dict[str, str | None]) -> CheckResult:
    variable = next((name for name in names if variables.get(name)), None)
    return CheckResult(
        name=f"key {service}",
        status=CheckStatus.PASS if variable else CheckStatus.SKIP,
        detail=f"{variable} is set"
        if variable
        else f"{' / '.join(names)} not set; the embedded data need none",
    )


def _cuda_card(index: int) -> str:
    from torch import cuda

    free, total = cuda.mem_get_info(index)
    return f"cuda:{index} {cuda.get_device_name(index)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"


def _answers(endpoint: str) -> bool:
    try:
        httpx.head(endpoint, timeout=_HUB_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return True


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
        return _failed(name, error, remedy=command or error.remedy), None
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
        explores = ["--explore", "--servers", str(servers)] if servers is not None else []
        remedy = shlex.join(["mcpagent", "gen-data", *explores])
        return CheckResult(name=name, status=CheckStatus.WARN, detail=error.message, remedy=remedy)
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

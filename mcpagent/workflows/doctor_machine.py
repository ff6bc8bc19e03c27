"""Checks of the machine: Python, packages, device, keys, hub, disk. Nothing here starts an MCP server."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from dotenv import dotenv_values
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from mcpagent.core.metrics import CheckResult, CheckStatus
from mcpagent.servers.names import KEY_NAMES
from mcpagent.storage.packages import installed_version, pip_install

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
)


def check_python() -> CheckResult:
    """Python against what the installed mcpagent asks for."""
    version = platform.python_version()
    wanted = SpecifierSet(metadata.metadata("mcpagent")["Requires-Python"])
    is_good = wanted.contains(version, prereleases=True)
    return CheckResult(
        name="python",
        status=CheckStatus.PASS if is_good else CheckStatus.FAIL,
        detail=f"{version} at {sys.executable}" + ("" if is_good else f"; mcpagent needs {wanted}"),
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
    known = {**dotenv_values(Path.cwd() / ".env"), **os.environ}
    return [_check_key(service, names, known) for service, names in KEY_NAMES.items()]


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

    chosen = [requirement for requirement in requirements if applies(requirement)]
    return _check_group(f"extra {extra.name}", chosen, use=extra.use, missing=extra.missing)


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


def _check_key(service: str, names: Sequence[str], known: dict[str, str | None]) -> CheckResult:
    found = next((name for name in names if known.get(name)), None)
    return CheckResult(
        name=f"key {service}",
        status=CheckStatus.PASS if found else CheckStatus.SKIP,
        detail=f"{found} is set" if found else f"{' / '.join(names)} not set; the embedded data need none",
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

"""Which packages are installed, the command for those that are not, the versions behind a result."""

from __future__ import annotations

import contextlib
import importlib.metadata as metadata
import importlib.util
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError


def require(*extras: str, use: str) -> None:
    """Do nothing if every package of `extras` is installed; imports none of them. Raises UserError with all
    that are missing and the one command that installs them; `use` is what needs them ("training")."""
    absent = [extra for extra in extras if missing(extra)]
    if absent:
        raise missing_error(absent, use=use)


def missing_error(extras: Sequence[str], *, use: str, also: Sequence[str] = ()) -> UserError:
    """Return the error of `require`; `also` are modules that an import did not find."""
    modules = [name.partition(".")[0] for name in also]
    packages = dict.fromkeys([*modules, *(name for extra in extras for name in missing(extra))])
    names = [name for name in packages if name in modules or _module(name) not in modules]
    plural = "packages that are" if len(names) > 1 else "a package that is"
    return UserError(
        f"{use} needs {plural} not installed: {', '.join(names)}",
        remedy=pip_install(f"mcpagent[{','.join(extras)}]"),
    )


def missing(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed here, by their names on an index."""
    return [r.name for r in requirements(extra) if not is_installed(r.name)]


@cache
def requirements(extra: str = "") -> list[Requirement]:
    """Return what an extra adds to the base packages on this platform; without one, the base packages."""
    parsed = [Requirement(text) for text in metadata.requires("mcpagent") or ()]
    base = [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]
    if not extra:
        return base
    return [r for r in parsed if r not in base and r.marker and r.marker.evaluate({"extra": extra})]


def extra_with(module: str) -> str | None:
    """Return the smallest extra that brings the package of an imported module; None for what no extra
    brings."""
    name = module.partition(".")[0].lower()
    extras = metadata.metadata("mcpagent").get_all("Provides-Extra") or ()
    bringing = [e for e in extras if any(_module(r.name) == name for r in requirements(e))]
    return min(bringing, key=lambda extra: len(requirements(extra)), default=None)


def is_installed(package: str) -> bool:
    """Return whether the module of a package of an extra can be found here, whoever provides it (such as a
    build for CPUs). An extra's packages are imported by the names that they have on an index."""
    try:
        return importlib.util.find_spec(_module(package)) is not None
    except ImportError:
        return False


def installed_version(package: str) -> str | None:
    """Return the version of the package, or of another one that provides its module; None without one."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    if not is_installed(package):
        return None  # and no search: finding who provides a module reads the file list of every distribution
    providers = metadata.packages_distributions().get(_module(package), ())
    return metadata.version(providers[0]) if providers else None


def pip_install(*requirements: str) -> str:
    """Return the command that installs into this very environment."""
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    return shlex.join([str(shown), "-m", "pip", "install", *requirements])


def _module(package: str) -> str:
    return package.lower().replace("-", "_")


_CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGES = ("mcpagent", "torch", "transformers", "peft", "accelerate", "mcp", "vllm", "numpy", "pydantic")
_GIT_TIMEOUT_S = 10


def provenance() -> JsonObject:
    """Versions of what is installed (nothing is imported), the commit of mcpagent if known, and the time."""
    return {
        "schema_version": 1,
        "created_at": now(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: version for name in _PACKAGES if (version := installed_version(name)) is not None},
        "git": commit(),
    }


def now() -> str:
    """Return the time in UTC, to the second, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> JsonObject | None:
    """Return the commit of the checkout, or of that which the wheel was built from (`hatch_build.py`), and
    whether its files had changes; None if there is neither, or no git, or git refuses this checkout."""
    built_from = Path(__file__).parents[1] / "_resources" / "commit.json"
    if built_from.is_file():
        return json.loads(built_from.read_text(encoding="utf-8"))
    if not (_CHECKOUT / ".git").exists():
        return None
    # Without its lock: a git that is killed with the run would leave one behind in the checkout.
    described = ["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    command = ["git", "--no-optional-locks", "-C", str(_CHECKOUT), *described]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    head, _, changes = done.stdout.strip().partition("-")
    return {"commit": head, "has_changes": bool(changes)} if done.returncode == 0 else None

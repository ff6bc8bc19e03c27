"""How many threads the numerical libraries of this process start for one operation.

Each starts as many as there are cores unless it is told otherwise, mostly once and for all when it is
imported. Next to other work they wait for each other in loops that burn the time of both.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

# OpenMP first: torch, and whatever else is built on it, also inside vLLM.
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",  # of tokenizers
)
DEFAULT = 1
_by_default: list[str] = []  # what OMP_NUM_THREADS was set to here, and not by the user
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available_cores() -> int:
    """Return how many cores this process may use: those of its affinity mask, and no more than the quota of
    its cgroup. The machine may have many more."""
    has_mask = sys.platform == "linux"
    cores = len(os.sched_getaffinity(0)) if has_mask else os.cpu_count() or 1
    quota, _, period = _QUOTA.read_text().partition(" ") if _QUOTA.is_file() else ("max", "", "")
    if quota.isdecimal() and period.strip().isdecimal():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def limit_threads(default: int = DEFAULT) -> int:
    """Limit every library to OMP_NUM_THREADS threads, without that to `default`; returns the number. Called
    where a command starts, before any of them is imported, and again where torch is there. A variable of one
    library that is set already stays as it is."""
    from_environment = os.environ.get(VARIABLES[0], "").partition(",")[0].strip()
    if from_environment in _by_default:
        from_environment = ""
    threads = (int(from_environment) if from_environment.isdecimal() else 0) or default
    if not from_environment:
        os.environ[VARIABLES[0]] = str(threads)
        _by_default[:] = [str(threads)]
    for name in VARIABLES[1:]:
        os.environ.setdefault(name, str(threads))
    if threads == 1:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
        if torch.get_num_interop_threads() != threads:
            with suppress(RuntimeError):  # they have started: it is too late for a process that used them
                torch.set_num_interop_threads(threads)
    return threads

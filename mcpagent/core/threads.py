"""How many threads the numerical libraries of this process start for one operation.

Each starts as many as there are cores unless it is told otherwise, mostly once and for all when it is
imported. Beside other work they wait for each other in loops that burn the time of both.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

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


def limit_threads(count: int | None = None) -> int:
    """Limit every library to `count` threads, by default to OMP_NUM_THREADS and without that to one; returns
    the number. Called where a command starts, before any of them is imported, and again with what the
    configuration says. A variable of one library that is set already stays as it is."""
    from_environment = os.environ.get(VARIABLES[0], "").partition(",")[0].strip()
    threads = count or (int(from_environment) if from_environment.isdecimal() else 0) or DEFAULT
    if count is not None or not from_environment:
        os.environ[VARIABLES[0]] = str(threads)
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

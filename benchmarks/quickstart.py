"""What the quickstart costs: CPU seconds by stage, tokens per CPU second, peak memory.

    python -m benchmarks.quickstart [--seed N] [--json]

CPU seconds, not wall time: they hardly depend on what else the machine does. One thread, so that they add up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder) / "run", seed=options.seed)
    if options.as_json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        print(f"{name:<36}{value:>16,.1f}" if isinstance(value, float) else f"{name:<36}{value:>16}")


def measure(out: Path, *, seed: int) -> dict[str, Any]:
    """Run the quickstart in a process of its own and read what it cost."""
    command = [sys.executable, "-m", "mcpagent.cli.main", "quickstart", "--out", str(out)]
    document = json.loads(
        subprocess.run(
            [*command, "--seed", str(seed), "--json"],
            check=True,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ).stdout
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rollout_s, update_s = (sum(s[key] for s in steps) for key in ("rollout_cpu_s", "update_cpu_s"))
    sampled = sum(s["tokens"] for s in steps)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        **{f"cpu_s {name}": value for name, value in document["cpu_s"].items()},
        "cpu_s total": round(used.ru_utime + used.ru_stime, 1),
        "peak memory MiB": round(used.ru_maxrss / 1024, 1),
        "generated tokens / CPU s": round(sampled / rollout_s, 1),
        "updated tokens / CPU s": round(sampled / update_s, 1),
        "episodes / CPU s of rollout": round(sum(s["episodes"] for s in steps) / rollout_s, 1),
        "tool calls / CPU s of rollout": round(sum(s["tool_calls"] for s in steps) / rollout_s, 1),
        "success greedy before": document["warm_start"]["metrics"]["task_success"]["value"],
        "success greedy after": document["trained"]["metrics"]["task_success"]["value"],
    }


if __name__ == "__main__":
    main()

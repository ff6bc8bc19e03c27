"""Nothing reaches out but where a command's help says it: the commands, and the servers that they start, run
under an audit hook that refuses and writes down every connection and look-up beyond this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import ROOT

pytestmark = pytest.mark.system

SAMPLES = ROOT / "data" / "samples" / "train.jsonl"
_COMMANDS = [
    "--help",
    "doctor --servers mcp.json",
    "tools list",
    "tools call fmp.fmp_get_quote {}",
    "gen-data --train 4 --validation 1 --heldout 1 --out made",
    f"data validate {SAMPLES}",
    f"data stats {SAMPLES}",
    f"data show {SAMPLES}",
    f"data split {SAMPLES} --out split",
    f"data dedupe {SAMPLES} --out distinct.jsonl",
    "data samples samples",
    "env check --data samples --set data.max_tasks=2",
    f"rollout --policy gold --data {SAMPLES} --set data.max_tasks=2 --out gold.jsonl",
    "eval compare gold.jsonl gold.jsonl",
    f"convert {SAMPLES} --out converted.jsonl",
    "train --dry-run --data samples --model embedded",
    "runs",
    "report nowhere",
    "export nowhere --out model",
]
# The help of each of these says so.
_ASKING = ["train --dry-run --data samples --model nobody/has-this-model"]
_GUARD = """
import os, sys

def _guard(event, args):
    if event == "socket.getaddrinfo":
        host = args[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(args[1], tuple):
        host = args[1][0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host in (None, "", "localhost", "::1") or str(host).startswith("127."):
        return
    with open(os.environ["REACHED"], "a") as log:
        log.write(f"{os.environ['COMMAND']}: {event} {host}\\n")
    raise OSError(f"reached out: {host}")

sys.addaudithook(_guard)
"""
_PROGRAM = """
import json, os, sys
from mcpagent.cli.main import run
for line in json.loads(sys.argv[1]):
    sys.argv = ["mcpagent", *line.split()]
    os.environ["COMMAND"] = line
    print("$", line, file=sys.stderr)
    try:
        run()
    except SystemExit as ended:
        assert ended.code in (None, 0, 1, 2), ended.code
"""


def test_no_command_reaches_out_but_where_its_help_says_so(tmp_path: Path) -> None:
    guard, log = tmp_path / "guard", tmp_path / "reached.txt"
    guard.mkdir()
    (guard / "sitecustomize.py").write_text(_GUARD)
    log.touch()
    serve = {"command": sys.executable, "args": ["-m", "mcpagent.cli.main", "serve", "fmp"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"fmp": serve}}))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = {"PYTHONPATH": f"{guard}:{ROOT}", "REACHED": str(log), "HF_HOME": str(tmp_path / "hub")}
    # One process for all, because most of what a command costs is what it imports.
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps([*_COMMANDS, *_ASKING])],
        cwd=tmp_path,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    reached = [line.rpartition(": ") for line in log.read_text().splitlines()]
    assert {command for command, _, _ in reached} == set(_ASKING), reached
    assert all("huggingface" in what for _, _, what in reached), reached

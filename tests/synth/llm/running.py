"""`mcpagent gen-data --llm` against the scripted model, as a process that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.llm.service import API_KEY

JOURNAL = "llm-journal.jsonl"
SPLITS = ("train", "validation", "heldout")


def command(url: str, out: Path, *options: str) -> list[str]:
    chosen = ["--base-url", url, "--model", "scripted", "--out", str(out), "--request-timeout", "4", "--json"]
    return [sys.executable, "-m", "mcpagent.cli.main", "gen-data", "--llm", *chosen, *options]


def environment(**more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**inherited, "OPENAI_API_KEY": API_KEY, **more}


def start(url: str, out: Path, *options: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(url, out, *options),
        cwd=out.parent,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def generate(url: str, out: Path, *options: str, **env: str) -> dict[str, Any]:
    """The document of a run that ends well."""
    with start(url, out, *options, **env) as process:
        stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr
    assert API_KEY not in stdout + stderr
    return json.loads(stdout)


def written(out: Path) -> dict[str, bytes]:
    return {s: path.read_bytes() for s in SPLITS if (path := out / f"{s}.jsonl").exists()}


def journal(out: Path) -> list[dict[str, Any]]:
    """Its whole lines; a kill may have cut the last."""
    raw = (out / JOURNAL).read_bytes() if (out / JOURNAL).exists() else b""
    return [json.loads(line) for line in raw.splitlines(keepends=True) if line.endswith(b"\n")]


def answered(out: Path) -> list[str]:
    """The keys of the answers that are on disk, in order."""
    return [line["key"] for line in journal(out) if line["kind"] == "answered"]

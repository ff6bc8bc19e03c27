"""`mcpagent gen-data --llm` against the scripted model, as a process that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from mcpagent.cli.main import load_app
from tests.llm.service import API_KEY
from tests.running import Command

JOURNAL = "llm-journal.jsonl"
SPLITS = ("train", "validation", "heldout")


def options(url: str, out: Path, *more: str) -> list[str]:
    """A busy machine may take its time to an answer; where the model hangs, `more` gives it less."""
    chosen = ["--set", f"api.base_url={url}", "--model", "scripted", "--out", str(out), "--json"]
    return ["--llm", *chosen, "--set", "api.timeout_s=60", *more]


def start(url: str, out: Path, *more: str) -> subprocess.Popen[str]:
    """The command as a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return Command(
        *("gen-data", *options(url, out, *more)),
        cwd=out.parent,
        env={**inherited, "OPENAI_API_KEY": API_KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def invoke(url: str, out: Path, *more: str, **env: str) -> Result:
    """The command in this process: starting one costs more than most runs here."""
    return CliRunner().invoke(
        load_app("gen-data"),
        options(url, out, *more),
        env={"OPENAI_API_KEY": API_KEY, "OPENAI_BASE_URL": None, **env},
    )


def generate(url: str, out: Path, *more: str, **env: str) -> dict[str, Any]:
    """The document of a run that ends well."""
    done = invoke(url, out, *more, **env)
    assert done.exit_code == 0, done.exception or done.stderr
    assert API_KEY not in done.output
    return json.loads(done.stdout)


def written(out: Path) -> dict[str, bytes]:
    return {s: path.read_bytes() for s in SPLITS if (path := out / f"{s}.jsonl").exists()}


def journal(out: Path) -> list[dict[str, Any]]:
    """Its whole lines; a kill may have cut the last."""
    raw = (out / JOURNAL).read_bytes() if (out / JOURNAL).exists() else b""
    return [json.loads(line) for line in raw.splitlines(keepends=True) if line.endswith(b"\n")]


def answered(out: Path) -> list[str]:
    """The keys of the answers that are on disk, in order."""
    return [line["key"] for line in journal(out) if line["kind"] == "answered"]

"""The first day of a new user: the commands of docs/install.md, from the built wheel, in an empty folder,
with a server of the user's own, on every Python that mcpagent names and this machine has."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.base_environment import build_wheel
from tests.house import ROOT
from tests.slow.pythons import VERSIONS, interpreter

pytestmark = pytest.mark.slow

_SERVER = ROOT / "tests" / "demo" / "servers" / "library.py"


def _blocks(heading: str) -> list[list[str]]:
    """The commands of a section of docs/install.md, block by block."""
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [[line for line in block.splitlines() if line] for block in found]


@pytest.fixture(params=VERSIONS)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a shell in which the page's install command has put the wheel into a new
    environment; the environment, which is large, is removed afterwards."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"there is no Python {request.param} here")
    *_, install = [line for block in _blocks("Install") for line in block if line.startswith("pip install")]
    wheel = build_wheel(tmp_path / "wheel")
    words = [word.strip('"').replace(".[", f"{wheel}[") for word in install.split()[1:]]
    folder = tmp_path / "env"
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    constraints = ROOT / "constraints" / "core.txt"
    command = [folder / "bin" / "python", "-m", "pip", *words, "--quiet", "-c", constraints]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the packages cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    yield {**ours, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    shutil.rmtree(folder)


def _run(line: str, folder: Path, env: dict[str, str]) -> str:
    done = subprocess.run(line, shell=True, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback" not in done.stderr, f"{line}\n{done.stderr[-4000:]}"
    return done.stdout


def _interrupted(line: str, folder: Path, env: dict[str, str], *, run: Path) -> None:
    """The command with a Ctrl-C once the run has a checkpoint."""
    process = subprocess.Popen(
        line.split(), cwd=folder, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    while process.poll() is None and not list((folder / run).glob("checkpoints/step-*")):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert f"go on with: {line}" in err


@pytest.mark.timeout(7200)
def test_every_command_of_the_first_day_runs_from_the_wheel_in_an_empty_folder(
    environment: dict[str, str], tmp_path: Path
) -> None:
    day = tmp_path / "day"
    day.mkdir()
    shutil.copy(_SERVER, day)
    servers = {"library": {"command": "python", "args": ["library.py"]}}
    (day / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    data, [quickstart], after, _with_a_gpu = _blocks("The first day")
    for line in data:
        _run(line, day, environment)
    assert {path.name for path in (day / "data" / "mine").glob("*.jsonl")} == {
        "train.jsonl",
        "validation.jsonl",
        "heldout.jsonl",
    }
    _interrupted(quickstart, day, environment, run=Path("outputs/own/warm_start"))
    _run(quickstart, day, environment)
    said = {line: _run(line, day, environment) for line in after}
    assert "finished" in said["mcpagent runs"]
    success = [
        json.loads((day / f"{name}.json").read_text())["metrics"]["task_success"]
        for name in ("before", "after")
    ]
    assert success[0]["ci_high"] < success[1]["ci_low"] and success[0]["n"] >= 40
    assert (day / "outputs" / "own" / "report.html").stat().st_size > 100_000
    assert {"config.json", "model.safetensors", "README.md"} <= {p.name for p in (day / "model").iterdir()}

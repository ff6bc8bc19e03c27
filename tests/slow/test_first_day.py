"""The first day of a new user: README's commands, from the built wheel, in an empty folder, with a server of
the user's own, on every Python that mcpagent names and this machine has."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.base_environment import build_wheel
from tests.house import ROOT

pytestmark = pytest.mark.slow

_SERVER = '''\
"""Books and shelves of a library: read-only tools, sixty books."""
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("library", log_level="ERROR")
reads = ToolAnnotations(read_only_hint=True)
books = {
    f"B{n:03d}": {"title": f"Title {chr(65 + n % 26)}{n}", "year": 1900 + 7 * n % 120, "shelf": f"S{n % 9}"}
    for n in range(60)
}

@server.tool(annotations=reads)
def list_shelf(shelf: str) -> dict:
    """The books on a shelf, such as S3."""
    return {"books": [{"book": key, "title": b["title"]} for key, b in books.items() if b["shelf"] == shelf]}

@server.tool(annotations=reads)
def list_shelves() -> dict:
    """The shelves of the library."""
    return {"shelves": [f"S{n}" for n in range(9)]}

@server.tool(annotations=reads)
def get_book(book: str) -> dict:
    """Title, year and shelf of a book, such as B007."""
    if book not in books:
        raise ValueError(f"there is no book {book}")
    return {"book": book, **books[book]}

server.run()
'''
_VERSIONS = [
    text.rpartition(" ")[2]
    for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
]


def _interpreter(version: str) -> str | None:
    """A Python of that version: on the path, or beside the one that runs this."""
    candidates = [shutil.which(f"python{version}")]
    for root in (Path(sys.base_prefix).parent, Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()):
        candidates += sorted(map(str, root.glob(f"**/{version}.*/bin/python{version}")))
    for python in filter(None, candidates):
        asked = subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True)
        if asked.returncode == 0:
            return python
    return None


def _blocks(heading: str) -> list[list[str]]:
    """The commands of a section of README.md, block by block."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [[line for line in block.splitlines() if line] for block in found]


@pytest.fixture(params=_VERSIONS)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a shell in which README's own install command has put the wheel into a new
    environment; the environment, which is large, is removed afterwards."""
    python = _interpreter(request.param)
    if python is None:
        pytest.skip(f"there is no Python {request.param} here")
    *_, install = [line for block in _blocks("Install") for line in block if line.startswith("pip install")]
    wheel = build_wheel(tmp_path / "wheel")
    words = [word.strip('"').replace("mcpagent", str(wheel)) for word in install.split()[1:]]
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
    assert f"mcpagent train --config {run}/config.yaml --resume" in err, "what goes on with it is said"


@pytest.mark.timeout(7200)
def test_every_command_of_the_first_day_runs_from_the_wheel_in_an_empty_folder(
    environment: dict[str, str], tmp_path: Path
) -> None:
    day = tmp_path / "day"
    day.mkdir()
    (day / "library.py").write_text(_SERVER)
    servers = {"library": {"command": "python", "args": ["library.py"]}}
    (day / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    data, training, after, _with_a_gpu = _blocks("The first day")
    for line in data:
        _run(line, day, environment)
    assert {path.name for path in (day / "data" / "mine").glob("*.jsonl")} == {
        "train.jsonl",
        "validation.jsonl",
        "heldout.jsonl",
    }
    *before, train = training
    for line in before:
        _run(line, day, environment)
    assert "dry-run" in before[-1] and not (day / "outputs" / "mine").exists()
    _interrupted(train, day, environment, run=Path("outputs/mine"))
    said = {line: _run(line, day, environment) for line in after}
    steps = int(re.search(r"max_steps=(\d+)", train)[1])  # pyright: ignore[reportOptionalSubscript]
    metrics = (day / "outputs" / "mine" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == list(range(1, steps + 1)), "as if unbroken"
    assert "finished" in said["mcpagent runs"]
    assert all("FILE" not in text for text in said.values()), "the next command names the run's own data"
    for name in ("before.json", "after.json"):
        assert json.loads((day / name).read_text())["n_tasks"] == 6
    assert (day / "outputs" / "mine" / "report.html").stat().st_size > 100_000
    assert {"config.json", "model.safetensors", "README.md"} <= {p.name for p in (day / "model").iterdir()}

"""From the wheel without extras each command does its work, or names every package that it lacks and the one
command that installs them; and what the extras bring."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cli.base_environment import closure, make_base_environment
from tests.cli.specs import spec_of
from tests.house import ROOT
from tests.test_docs import _leaves

pytestmark = pytest.mark.system

TRAIN = "samples/train.jsonl"
# Command lines as short as they get, with the extras that their work needs. In this order: some read what an
# earlier one wrote. CHECKPOINT is a folder that the test makes.
COMMANDS: dict[str, tuple[str, ...]] = {
    "data samples samples": (),
    "quickstart": ("hf", "report"),
    "doctor --servers none.json": (),
    "gen-data --train 2 --validation 1 --heldout 1 --out made": (),
    "convert spec.json --out converted.jsonl": (),
    f"data validate {TRAIN}": (),
    f"data stats {TRAIN}": (),
    f"data show {TRAIN}": (),
    f"data split {TRAIN} --out split": (),
    f"data dedupe {TRAIN} --out distinct.jsonl": ("data",),
    f"data restate {TRAIN} --out restated.jsonl": (),
    f"data export {TRAIN} --out rows.jsonl": (),
    "tools list": (),
    """tools call tavily.tavily_search '{"query": "interest rates"}'""": (),
    """tools bench tavily.tavily_search '{"query": "interest rates"}' --calls 2""": (),
    "tools login shop --servers shop.json": (),
    "tools logout shop --servers shop.json": (),
    "serve fmp": (),
    "serve python": (),
    "env check --data samples --set data.max_tasks=1": (),
    "env serve --data samples --host 0.0.0.0 --port 0": (),
    f"rollout --policy gold --data {TRAIN} --set data.max_tasks=1 --out gold.jsonl": (),
    f"rollout --policy CHECKPOINT --data {TRAIN} --set data.max_tasks=1 --out own.jsonl": ("hf",),
    "train --data samples": ("hf",),
    "train --data samples --algo sft": ("hf",),
    "train --data samples --dry-run": ("hf",),
    "runs": (),
    f"eval checkpoint CHECKPOINT --data {TRAIN}": ("hf",),
    f"eval model CHECKPOINT --data {TRAIN}": ("hf",),
    "eval compare gold.jsonl gold.jsonl": (),
    "rollout --policy gold --data samples/validation.jsonl --out part.jsonl": (),
    f"eval regrade gold.jsonl --data {TRAIN}": (),
    f"eval judge-check --data {TRAIN}": (),
    "chat CHECKPOINT --once hello": ("hf",),
    "export CHECKPOINT --out model": ("hf",),
    "report CHECKPOINT": ("report",),
    "report CHECKPOINT --format inspect": ("inspect",),
    "view CHECKPOINT": ("report",),
    "smoke": ("hf",),
}
REFUSED = {  # for another reason than a package that is missing
    "tools login shop": "cannot be reached",
    "eval judge-check --data": "no judge is named",
    "env serve --data samples --host": "no token is asked for",
}
# One process for all, because most of what a command costs is what it imports. What a command says goes to a
# file by its descriptor, which servers take as their stdout.
_PROGRAM = """
import json, os, sys
from mcpagent.cli.main import run
results = os.fdopen(os.dup(1), "w")
for words in json.loads(sys.argv[1]):
    sys.argv = ["mcpagent", *words]
    with open("said.txt", "w+") as said:
        os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
        try:
            code = run()
        except SystemExit as ended:
            code = ended.code
        sys.stdout.flush(), sys.stderr.flush()
        said.seek(0)
        print(json.dumps([code or 0, said.read()]), file=results)
"""


def test_without_extras_each_command_works_or_names_what_it_lacks(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helps = {f"{name} --help": () for name, _ in _leaves()}
    for name, _ in _leaves():
        assert any(line.startswith(name) for line in COMMANDS), f"{name} is not tried"
    # A script that is called like a package, as beside `pytest`, whose folder is then on the path.
    (scripts := tmp_path / "scripts").mkdir()
    (scripts / "typer").touch()
    monkeypatch.syspath_prepend(scripts)
    python = make_base_environment(tmp_path)
    (work := tmp_path / "work").mkdir()
    given = {
        "spec.json": json.dumps(spec_of("fmp", "fmp_get_quote", {"symbol": "QQLA"})),
        "none.json": '{"mcpServers": {}}',
        "shop.json": '{"mcpServers": {"shop": {"url": "http://127.0.0.1:1/mcp"}}}',
    }
    for name, text in given.items():
        (work / name).write_text(text)
    lines = [*helps, *COMMANDS]
    folders = {"CHECKPOINT": tiny_checkpoint}
    words = [[str(folders.get(word, word)) for word in shlex.split(line)] for line in lines]
    done = subprocess.run(
        [python, "-c", _PROGRAM, json.dumps(words)],
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (work / "said.txt").read_text()
    results = dict(zip(lines, map(json.loads, done.stdout.splitlines()), strict=True))
    for line, extras in (helps | COMMANDS).items():
        code, said = results[line]
        assert "Traceback" not in said, f"{line}: {said}"
        if "no sandbox to run code in" in said:  # what runs code without bubblewrap is in an extra
            assert code and shutil.which("bwrap") is None and "mcpagent[servers]" in said, f"{line}: {said}"
        elif extras:
            assert code == 2, f"{line}: {said}"
            _assert_names_what_is_missing(said, python=python, extras=extras)
        elif refusal := next((text for start, text in REFUSED.items() if line.startswith(start)), None):
            assert code == 2 and refusal in said, f"{line}: {said}"
        elif not line.startswith("doctor "):  # what it is asked for is what this machine lacks
            assert code == 0, f"{line}: {said}"
    code, said = results["doctor --servers none.json"]
    assert (code, "extra hf: " in " ".join(said.split())) == (1, True), said
    made = {path.name for path in work.iterdir()} - given.keys()
    written = {
        "gold.jsonl",
        "part.jsonl",
        "converted.jsonl",
        "said.txt",
        "restated.jsonl",
        "rows.jsonl",
        "servers.yaml",
    }
    assert made == {"samples", "made", "split", *written}


def _assert_names_what_is_missing(said: str, *, python: Path, extras: tuple[str, ...]) -> None:
    error, command = said.splitlines()[-2:]
    packages = {name.strip() for name in error.rpartition(":")[2].split(",")}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert packages == {Requirement(text).name for extra in extras for text in declared[extra]}
    assert command.strip() == f"{python} -m pip install 'mcpagent[{','.join(extras)}]'"


def test_all_brings_every_extra_but_those_of_developers() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    reached, waiting = set[str](), ["all"]
    while waiting:
        reached.add(extra := waiting.pop())
        own = (Requirement(text) for text in declared[extra])
        waiting += [inner for r in own if r.name == "mcpagent" for inner in r.extras - reached]
    # SkyRL and Inspect pin what the rest does not want, TRL is another trainer: environments of their own.
    assert reached == declared.keys() - {"dev", "skyrl", "inspect", "trl"}


def test_the_pinned_versions_fit_the_extras_and_each_other() -> None:
    """Of `all` what can be seen without a network: what mcpagent asks for itself, and what the installed
    packages ask for."""
    lines = (ROOT / "constraints" / "core.txt").read_text().splitlines()
    pins = {
        canonicalize_name(name): version
        for name, _, version in (line.partition("==") for line in lines if not line.startswith("#"))
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    local = [text for name in ("hf", "servers", "data", "report", "gym") for text in extras[name]]
    asked = {"mcpagent": [*project["dependencies"], *(text for texts in extras.values() for text in texts)]}
    for name in closure([*project["dependencies"], *local]):
        asked[name] = [text for text in metadata.requires(name) or () if not re.search(r"\bextra\b", text)]
    installed = ("hf", "report", "gym", "qlora", "dev")
    pinned = [*project["dependencies"], *(text for name in installed for text in extras[name])]
    assert {canonicalize_name(Requirement(text).name) for text in pinned} - {"mcpagent"} <= pins.keys()
    assert {"torch", "numpy", "plotly", "typer"} <= asked.keys() & pins.keys()
    for name, texts in asked.items():
        for wanted in map(Requirement, texts):
            pin = pins.get(canonicalize_name(wanted.name))
            if pin is not None and (wanted.marker is None or wanted.marker.evaluate()):
                assert wanted.specifier.contains(pin, prereleases=True), f"{name} wants {wanted}, not {pin}"

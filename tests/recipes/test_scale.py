"""The recipes past one machine: each file is read by its own tool, and its commands have these options."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcpagent.cli.main import load_command
from mcpagent.config.loader import load_train_config
from tests.house import ROOT

RECIPES = ROOT / "recipes" / "scale"
SCRIPTS = sorted(RECIPES.glob("*.sbatch"))
KUBERAY = RECIPES / "kuberay.yaml"


def commands(path: Path) -> Iterator[list[str]]:
    """The words of each mcpagent command in a file, with 1 for every variable."""
    text = path.read_text().replace("\\\n", " ")
    if path.suffix == ".yaml":
        text = yaml.safe_load(text)["spec"]["entrypoint"]
    for line in text.splitlines():
        line = re.sub(r'"?\$\{?\w+(?:\[@\])?\}?"?', "1", line.partition(" #")[0])
        found = re.search(r"(?:mcpagent\.cli\.main|/mcpagent\"?|\bmcpagent) ((?:train|eval) .*)", line)
        if found and not line.startswith("#"):
            yield shlex.split(found[1].replace('"', ""))


def test_there_is_a_recipe_for_each_way() -> None:
    names = ["eval-array", "skyrl-ray", "train-nodes"]
    assert [path.name for path in SCRIPTS] == [f"{name}.sbatch" for name in names]
    page = (ROOT / "docs" / "scale.md").read_text()
    assert all(f"recipes/scale/{path.name}" in page for path in (*SCRIPTS, KUBERAY))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_bash_reads_the_script_and_slurm_its_head(path: Path) -> None:
    assert subprocess.run(["bash", "-n", path], capture_output=True, text=True).stderr == ""
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    options = [line for line in lines if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in options)
    # Slurm reads options up to the first command.
    assert max(map(lines.index, options)) < lines.index("set -euo pipefail")


@pytest.mark.parametrize("path", [*SCRIPTS, KUBERAY], ids=lambda path: path.name)
def test_the_commands_of_a_recipe_have_these_options(path: Path) -> None:
    tried = list(commands(path))
    assert tried
    for words in tried:
        command: Any = load_command(words[0])
        if hasattr(command, "commands"):
            command = command.commands[words[1]]
        known = {name for parameter in command.params for name in parameter.opts}
        asked = {word for word in words if word.startswith("--")}
        assert asked <= known, asked - known
        settings = [b for a, b in itertools.pairwise(words) if a == "--set"]
        load_train_config([], settings)  # refuses a setting that there is not


def test_the_ray_job_has_what_kuberay_asks_for_and_no_secret() -> None:
    job = yaml.safe_load(KUBERAY.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert cluster["workerGroupSpecs"][0]["replicas"] == 2
    for group in groups:
        assert "rayStartParams" in group
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] and container["resources"]["requests"] == container["resources"]["limits"]
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        assert container["envFrom"] == [{"secretRef": {"name": "mcpagent-keys"}}] and "env" not in container
    ports = {p["name"]: p["containerPort"] for p in groups[0]["template"]["spec"]["containers"][0]["ports"]}
    assert ports == {"gcs": 6379, "dashboard": 8265, "client": 10001}

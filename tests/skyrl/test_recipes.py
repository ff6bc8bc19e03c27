"""The recipes for Ray, read by the Ray that they start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_symmetric_run_has_the_options_of_the_recipe() -> None:
    script = (ROOT / "recipes" / "scale" / "skyrl-ray.sbatch").read_text().replace("\\\n", " ")
    (words,) = re.findall(r"symmetric-run (.*?) -- ", script)
    asked = set(re.findall(r"--[a-z-]+", words))
    assert asked == {"--address", "--min-nodes", "--num-gpus"}
    ray = Path(sys.executable).with_name("ray")
    said = subprocess.run([ray, "symmetric-run", "--help"], capture_output=True, text=True, check=True).stdout
    documented = set(re.findall(r"--[a-z-]+", said))
    # Options that are not its own go to `ray start`.
    start = subprocess.run([ray, "start", "--help"], capture_output=True, text=True, check=True).stdout
    assert asked <= documented | set(re.findall(r"--[a-z-]+", start))
    assert {"--address", "--min-nodes"} <= documented

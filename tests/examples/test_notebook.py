"""The notebook runs from its first cell to its last on a CPU, with a tiny model for the pretrained one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.house import ROOT

NOTEBOOK = ROOT / "examples" / "your_servers.ipynb"
SHORT = ["training.max_steps=2", "training.batch_size=2", "rollout.group_size=2", "rollout.max_new_tokens=4"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_notebook_trains_on_the_servers_that_it_writes_and_plots_before_and_after(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    names = [line.split(" = ")[0] for line in parameters.source.splitlines()]
    given = {"MODEL": str(tiny_checkpoint), "MINUTES": 10, "SETTINGS": SHORT}
    assert names == list(given)
    parameters.source = "\n".join(f"{name} = {value!r}" for name, value in given.items())
    nbclient.NotebookClient(notebook, timeout=3000, resources={"metadata": {"path": str(tmp_path)}}).execute()
    result = json.loads((tmp_path / "result.json").read_text())
    assert Path(tmp_path / result["report"]).stat().st_size > 100_000
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    (figure,) = [
        output["data"]["application/vnd.plotly.v1+json"]
        for output in shown
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]
    stages = ["untrained", "untrained_2_shots", "warm_start", "trained"]
    for trace, key in zip(figure["data"], ("task_success", "task_success_sampled"), strict=True):
        metrics = [result[stage]["metrics"][key] for stage in stages]
        highs = [high + value for high, value in zip(trace["error_y"]["array"], trace["y"], strict=True)]
        assert highs == pytest.approx([100 * metric["ci_high"] for metric in metrics])
        assert all(metric["n"] >= 10 for metric in metrics)
    text = "".join(output.get("text", "") for output in shown)
    assert "Traceback" not in text
    assert "the answer is" in text and "3 tools of 2 servers" in text and "points over" in text

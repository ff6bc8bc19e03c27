from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpagent.evaluate.report.document import ReportDocument
from mcpagent.evaluate.report.page import write_page
from mcpagent.evaluate.report.run_data import read_run
from tests.evaluate.run_folder import LEVELS, step_row, write_run
from tests.running import mcpagent


def test_the_json_has_every_figure_of_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = run / "report.json"
    write_page(read_run(run), path, as_json=True)
    document = ReportDocument.model_validate_json(path.read_text(encoding="utf-8"))
    # 48 tasks: a third succeed before; afterwards all but those with index % 8 == 5, which are 6.
    (greedy,) = (r for r in document.success if (r.evaluation, r.part) == ("greedy", "all"))
    assert greedy.before and greedy.after and greedy.difference
    assert (greedy.before.value, greedy.after.value) == (pytest.approx(1 / 3), pytest.approx(42 / 48))
    assert greedy.difference.value == pytest.approx(42 / 48 - 1 / 3) and greedy.p_value is not None
    levels = {f"complexity {level}" for level in LEVELS}
    assert {r.part for r in document.success} == {"all", "scored only"} | levels
    assert document.steps == tuple(range(1, 31))
    kl = next(chart for chart in document.charts if chart.id == "kl")
    assert kl.curves[0].values == tuple(step_row(i)["kl"] for i in range(1, 31))
    assert document.cost.episodes == 30 * 96 and document.cost.tokens == 30 * 21_000
    assert {v.outcome for v in document.verdicts} == {"pass"} and len(document.verdicts) == 8
    assert document.tools is not None and document.tools.servers[0].tools[0].calls == 1200
    assert [c.name for c in document.controls] == ["random rewards", "more demonstrations"]
    assert document.config["seed"] == 3 and document.manifest["command"] == "mcpagent quickstart --seed 3"


def test_a_run_of_one_step_without_anything_else_has_its_document(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "kl": null}\n')
    path = tmp_path / "report.json"
    write_page(read_run(tmp_path), path, as_json=True)
    text = path.read_text(encoding="utf-8")
    assert "not measured" in text and "None" not in text


@pytest.mark.system
def test_the_command_writes_the_format_that_was_asked_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=6)
    document = json.loads(mcpagent("report", str(run), "--format", "json", "--json").stdout)
    assert document["format"] == "json" and document["report"] == str(run / "report.json")
    assert json.loads((run / "report.json").read_text())["schema_version"] == 2
    refused = mcpagent("report", str(run), "--format", "json", "--out", str(run))
    assert refused.returncode == 2 and "report.json would be replaced" in refused.stderr
    assert mcpagent("report", str(run), "--format", "md").returncode == 2

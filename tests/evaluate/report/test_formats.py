from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.report.document import ReportDocument, document_of, documents_of
from mcpagent.evaluate.report.formats import (
    markdown,
    runs_markdown,
    write_comparison_as,
    write_report_as,
)
from mcpagent.evaluate.report.run_data import read_run
from tests.evaluate.records import terms
from tests.evaluate.run_folder import step_row, write_run
from tests.running import mcpagent

HOSTILE = "a|b\n<script>alert(1)</script> **bold** [x](http://evil.example)\u202e"


def test_the_json_has_every_figure_of_the_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = write_report_as("json", read_run(run), run / "report.json")
    document = ReportDocument.model_validate_json(path.read_text(encoding="utf-8"))
    # 48 tasks: a third succeed before; afterwards all but those with index % 8 == 5, which are 6.
    (greedy,) = (r for r in document.success if (r.evaluation, r.part) == ("greedy", "all"))
    assert greedy.before and greedy.after and greedy.difference
    assert (greedy.before.value, greedy.after.value) == (pytest.approx(1 / 3), pytest.approx(42 / 48))
    assert greedy.difference.value == pytest.approx(42 / 48 - 1 / 3) and greedy.p_value is not None
    assert {r.part for r in document.success} == {"all", "scored only", "simple", "moderate", "complex"}
    assert document.steps == tuple(range(1, 31))
    kl = next(chart for chart in document.charts if chart.id == "kl")
    assert kl.curves[0].values == tuple(step_row(i)["kl"] for i in range(1, 31))
    assert document.cost.episodes == 30 * 96 and document.cost.tokens == 30 * 21_000
    assert document.episodes["eval_trained"].model_dump() == {
        "episodes": 48,
        "successes": 42,
        "failures": 6,
        "unscored": 0,
        "stop_reasons": {"answered": 48},
    }
    assert {v.outcome for v in document.verdicts} == {"pass"} and len(document.verdicts) == 7
    assert document.tools is not None and document.tools.servers[0].tools[0].calls == 1200
    assert [c.name for c in document.controls] == ["random rewards", "more demonstrations"]
    assert document.config["seed"] == 3 and document.manifest["command"] == "mcpagent quickstart --seed 3"


def test_the_markdown_has_the_headline_with_intervals_and_well_formed_tables(tmp_path: Path) -> None:
    text = markdown(document_of(read_run(write_run(tmp_path / "run"))))
    line = next(line for line in text.splitlines() if "task success, greedy" in line)
    assert "33.3% → 87.5%" in line and "+54.2 points [" in line and line.endswith("48 tasks")
    for title in ("Verdicts", "Task success", "Training curves", "Controls", "Tools"):
        assert f"### {title}\n\n| " in text
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) >= 6
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(widths) == 1, table
    # The curve's first, last and three steps between.
    assert "| Curve | step 1 | step 8 | step 15 | step 23 | step 30 |" in text


def test_the_text_of_others_is_text_in_markdown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=6)
    (run / "manifest.json").write_text(json.dumps({"title": HOSTILE}))
    (run / "eval" / "controls.json").write_text(json.dumps([{"name": HOSTILE, "what": HOSTILE}]))
    text = markdown(document_of(read_run(run)))
    assert "\u202e" not in text and not re.search(r"(?<!\\)<script|(?<!\\)\[x|(?<!\\)\*\*bold", text)
    row = next(line for line in text.splitlines() if line.startswith("| a"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 6


@pytest.mark.parametrize("kind", ["md", "json", "html"])
def test_a_run_of_one_step_without_anything_else_has_each_format(tmp_path: Path, kind: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "kl": null}\n')
    path = write_report_as(kind, read_run(tmp_path), tmp_path / f"report.{kind}")
    text = path.read_text(encoding="utf-8")
    assert "not measured" in text and "None" not in text


def _two_runs(folder: Path) -> list[Path]:
    """The second has another seed and a name with a tag in it, and fails what the first task asks."""

    def fail_the_first(episode: Trajectory) -> Trajectory:
        failed = terms(0.0, partial=0.0, penalty=0.0)
        is_first = episode.task_id == "held-out-000"
        return episode.model_copy(update={"reward_terms": failed}) if is_first else episode

    first, second = write_run(folder / "first"), write_run(folder / "<i>second", hook=fail_the_first)
    (second / "config.yaml").write_text("seed: 4\ngrpo:\n  target_kl: 0.1\nname: '<b>'\n")
    return [first, second]


def test_runs_side_by_side_have_paired_differences_and_only_the_settings_that_differ(tmp_path: Path) -> None:
    runs = [read_run(run) for run in _two_runs(tmp_path)]
    document = documents_of(runs)
    assert document.names == ("first", "<i>second") and document.has_same_tasks
    assert document.configuration == {"seed": ("3", "4"), "name": (None, "<b>")}
    difference = document.against_first[1]["greedy"]
    assert difference is not None and difference.value == pytest.approx(-1 / 48)
    sampled = document.against_first[1]["sampled"]
    assert sampled is not None and sampled.value == 0.0
    assert document.against_first[0] == {"greedy": None, "sampled": None}
    html = write_comparison_as("html", runs, tmp_path / "both.html").read_text(encoding="utf-8")
    assert "87.5%" in html and "85.4%" in html and "<i>second" not in html and "&lt;i&gt;second" in html
    figures = json.loads(re.findall(r'id="figures">(.*?)</script>', html)[0])
    assert [line["y"][-1] for line in figures["kl-kl"]["data"]] == [step_row(30)["kl"]] * 2
    assert [line["name"] for line in figures["kl-kl"]["data"]] == ["first", "&lt;i&gt;second"]
    text = write_comparison_as("md", runs, tmp_path / "both.md").read_text(encoding="utf-8")
    assert "| first | 87.5% [" in text and "−2.1 [" in text and "| seed | 3 | 4 |" in text
    with pytest.raises(UserError, match="named twice"):
        documents_of([runs[0], runs[0]])


def test_a_difference_is_given_only_where_all_tasks_are_the_same(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / str(tasks), tasks=tasks)) for tasks in (6, 9)]
    document = documents_of(runs)
    assert document.against_first[1] == {"greedy": None, "sampled": None} and not document.has_same_tasks
    assert "evaluated on different tasks" in runs_markdown(document)


@pytest.mark.system
def test_the_command_shows_several_runs(tmp_path: Path) -> None:
    first, second = _two_runs(tmp_path)
    done = mcpagent("report", str(first), str(second), "--format", "md")
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path / "comparison.md"))
    refused = mcpagent("report", str(first), str(second), "--format", "inspect")
    assert refused.returncode == 2 and "takes one run" in refused.stderr


@pytest.mark.system
def test_the_command_writes_the_format_that_was_asked_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=6)
    done = mcpagent("report", str(run), "--format", "md")
    assert (done.returncode, done.stdout.strip()) == (0, str(run / "report.md"))
    document = json.loads(mcpagent("report", str(run), "--format", "json", "--json").stdout)
    assert document["format"] == "json" and document["report"] == str(run / "report.json")
    assert json.loads((run / "report.json").read_text())["schema_version"] == 1
    refused = mcpagent("report", str(run), "--format", "md", "--out", str(run))
    assert refused.returncode == 2 and "report.md would be replaced" in refused.stderr


def test_a_picture_without_a_browser_is_an_error_of_the_user(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tasks=3)
    program = "import sys; from mcpagent.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", program, "report", str(run), "--format", "png"],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "Chromium" in done.stderr and "--format html, md or json" in done.stderr
    assert "Traceback" not in done.stderr and not (run / "report.png").exists()


@pytest.mark.slow
def test_the_picture_is_the_whole_page(tmp_path: Path) -> None:
    if not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no chromium on this machine")
    run = write_run(tmp_path / "run", tasks=6)
    done = mcpagent("report", str(run), "--format", "png")
    assert done.returncode == 0, done.stderr
    picture = (run / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", picture[16:24])
    assert width == 1280 and 4000 < height < 16_000

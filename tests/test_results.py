"""The stored runs: intervals that follow from the counts, a picture and a README that say nothing else."""

from __future__ import annotations

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from xml.etree import ElementTree

import pytest
from scipy.stats import binomtest

from tests.house import ROOT

RUNS = [json.loads(line) for line in (ROOT / "docs" / "results.jsonl").read_text().splitlines()]
_SVG = "{http://www.w3.org/2000/svg}"


def _script(name: str) -> ModuleType:
    """A script of docs/."""
    spec = spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIGURES, PAGES = _script("figures"), _script("generate")


def test_a_run_says_what_was_measured_when_and_by_which_command() -> None:
    facts = {"table", "server", "group", "drawn", "demonstrations", *PAGES._FACTS}
    page = (ROOT / "docs" / "results.md").read_text()
    for run in RUNS:
        assert {"server", "model", "date", "command"} <= run.keys() <= {*facts, *PAGES.STAGES}, run
        assert f"<!-- runs: {run['table']} -->" in page
        assert ("drawn" in run) == ("group" in run) == ("demonstrations" in run)
        for success in (each for stage in PAGES.STAGES for each in run.get(stage, {}).values()):
            assert 0 <= success["low"] <= success["value"] <= success["high"] <= 1, run


def test_the_interval_of_one_attempt_a_task_is_wilsons() -> None:
    """So a slip of the pen in a value, an end or an n is seen."""
    greedy = [
        stage["greedy"]
        for run in RUNS
        for name, stage in run.items()
        if name in PAGES.STAGES and "greedy" in stage
    ]
    assert len(greedy) > 60
    for success in greedy:
        solved = round(success["value"] * success["n"])
        interval = binomtest(solved, success["n"]).proportion_ci(0.95, "wilson")
        expected = (solved / success["n"], interval.low, interval.high)
        assert (success["value"], success["low"], success["high"]) == pytest.approx(expected, abs=6e-4), (
            success
        )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_stored_picture_is_the_one_that_the_script_draws(theme: str) -> None:
    stored = (ROOT / "docs" / "assets" / f"results-{theme}.svg").read_text(encoding="utf-8")
    assert stored == FIGURES.picture(theme), "run: make docs"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_bar_and_its_interval_measure_what_the_file_says(theme: str) -> None:
    picture = ElementTree.parse(ROOT / "docs" / "assets" / f"results-{theme}.svg").getroot()
    ticks = {text.text: float(text.attrib["x"]) for text in picture.findall(f"{_SVG}text")}
    scale = ticks["100"] - ticks["0"]
    bars = list[tuple[str, list[float]]]()
    for group in picture.findall(f"{_SVG}g"):
        (rect,), lines = group.findall(f"{_SVG}rect"), group.findall(f"{_SVG}path")
        ends = re.findall(r"^M([\d.]+) .*M([\d.]+) ", lines[-1].attrib["d"])[0]
        server = (group.findtext(f"{_SVG}title") or "").rpartition(", ")[0]
        assert float(rect.attrib["x"]) == ticks["0"]
        rates = [float(rect.attrib["width"]), *(float(end) - ticks["0"] for end in ends)]
        bars.append((server, [rate / scale for rate in rates]))
    drawn = [
        (run["server"], [success[key] for key in ("value", "low", "high")])
        for group in dict.fromkeys(run["group"] for run in RUNS if "drawn" in run)
        for run in RUNS
        for stage in FIGURES.BARS
        if run.get("group") == group and (success := run.get(stage, {}).get(run["drawn"]))
    ]
    assert len(drawn) > 10
    for (title, seen), (server, expected) in zip(bars, drawn, strict=True):
        assert title.startswith(server)
        assert seen == pytest.approx(expected, abs=2e-3)


def test_every_number_with_an_interval_in_the_readme_is_of_a_run() -> None:
    shown = re.findall(r"([\d.]+)%? \[([\d.]+), ([\d.]+)\]", (ROOT / "README.md").read_text())
    known = {
        tuple(f"{100 * each[key]:.3g}" for key in ("value", "low", "high"))
        for run in RUNS
        for stage in PAGES.STAGES
        for each in run.get(stage, {}).values()
    }
    assert len(shown) >= 2 and set(shown) <= known

"""The examples that a newcomer tries first give what they promise."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tests.cli.running import mcpagent

ROOT = Path(__file__).parents[2]


def test_the_record_of_the_readme_scores_one_with_its_gold_plan(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    start = text.index('{"data_source"')
    record = json.loads(text[start : text.index("```", start)])
    (tmp_path / "tasks.jsonl").write_text(json.dumps(record) + "\n")
    done = mcpagent(
        *("rollout", "--policy", "gold", "--data", tmp_path / "tasks.jsonl"),
        *("--out", tmp_path / "gold.jsonl", "--json"),
    )
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)["metrics"]
    assert (metrics["task_success"]["value"], metrics["mean_reward"]["value"]) == (1.0, 1.0)


def test_the_search_that_the_help_shows_finds_something() -> None:
    source = (ROOT / "docs" / "cli.md").read_text()
    line = next(line for line in source.splitlines() if "Example: mcpagent tools call tavily" in line)
    done = mcpagent(*shlex.split(line.partition("mcpagent ")[2]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"]

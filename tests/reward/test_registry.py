from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpagent.errors import UserError
from mcpagent.storage.datasets import TaskFile, read_tasks
from mcpagent.synth.datasets.validate import validate_dataset

SAMPLE = Path(__file__).parents[2] / "data" / "samples" / "train.jsonl"


def with_method(tmp_path: Path, method: object) -> Path:
    record = json.loads(SAMPLE.read_text().splitlines()[0])
    record["reward_spec"]["method"] = method
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(record) + "\n")
    return path


@pytest.mark.parametrize("method", ["llm_judge", "Rule", "", "rule ", 1, ["rule"]])
def test_a_record_with_an_unknown_method_is_refused_wherever_it_is_read(
    tmp_path: Path, method: object
) -> None:
    path = with_method(tmp_path, method)
    for read in (lambda: list(read_tasks(path)), lambda: TaskFile(path)):
        with pytest.raises(UserError, match=r"reward_spec\.method"):
            read()
    report = validate_dataset(path, catalog=None)
    assert (report.records, report.valid) == (1, 0)
    assert "reward_spec.method" in report.findings[0][1].detail


def test_the_error_names_the_methods_that_there_are(tmp_path: Path) -> None:
    says = r"reward_spec.method is 'llm_judge', but it must be 'rule', 'judge' or 'rule\+judge'"
    with pytest.raises(UserError, match=says):
        list(read_tasks(with_method(tmp_path, "llm_judge")))

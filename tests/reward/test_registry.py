from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpagent.core.tasks import RewardSpec, Task
from mcpagent.core.trajectory import StopReason
from mcpagent.errors import UserError
from mcpagent.reward.record import EpisodeRecord, grade
from mcpagent.storage.datasets import TaskFile, read_tasks
from mcpagent.synth.datasets.validate import validate_dataset

SAMPLE = Path(__file__).parents[2] / "data" / "samples" / "train.jsonl"


def with_method(tmp_path: Path, method: object) -> Path:
    record = json.loads(SAMPLE.read_text().splitlines()[0])
    record["reward_spec"]["method"] = method
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(record) + "\n")
    return path


@pytest.mark.parametrize("method", ["llm_judge", "Rule", "", "rule ", None, 1, ["rule"]])
def test_a_record_with_an_unknown_method_is_refused_wherever_it_is_read(
    tmp_path: Path, method: object
) -> None:
    path = with_method(tmp_path, method)
    for read in (lambda: list(read_tasks(path)), lambda: TaskFile(path)):
        with pytest.raises(UserError, match=r"reward_spec\.method"):
            read()
    report = validate_dataset(path, catalog=None)
    assert (report.records, report.valid) == (1, 0)
    assert "reward_spec.method" in report.findings[0].message


def test_the_error_names_the_methods_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'llm_judge' is not a reward method; there is rule"):
        list(read_tasks(with_method(tmp_path, "llm_judge")))


def test_a_task_built_in_code_with_an_unknown_method_is_not_graded_by_the_rule() -> None:
    task = next(read_tasks(SAMPLE))
    spec = RewardSpec.model_construct(method="llm_judge", ground_truth=task.truth)
    strange = Task.model_construct(**{**dict(task), "reward_spec": spec})
    with pytest.raises(UserError, match="rule"):
        grade(strange, EpisodeRecord(turns=(), final_answer=None, stop_reason=StopReason.ANSWERED))

"""New tasks from a run's own failures: near them, not there before, and about nothing that is held out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mcpagent.config.schema import ToolsConfig, TrainConfig
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import RewardTerm, StopReason, Trajectory
from mcpagent.errors import UserError
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.synth.failures import Skill, read_failures
from mcpagent.synth.templates.pools import SPLITS
from tests.cli.test_dataset_servers import KEY, write_mcp_json
from tests.running import mcpagent, refused

QUOTE, HISTORY, SEND = "fmp.fmp_get_quote", "slack.get_slack_channel_history", "slack.send_slack_message"


@pytest.mark.parametrize(
    ("skill", "failed", "relation"),
    [
        (Skill.of("single", [QUOTE]), Skill.of("single_call", [QUOTE]), "same"),
        (Skill.of(None, [QUOTE]), Skill.of(None, [HISTORY, QUOTE]), "less"),
        (Skill.of(None, [HISTORY]), Skill.of(None, [HISTORY, QUOTE]), "less"),
        (Skill.of(None, [HISTORY, QUOTE, SEND]), Skill.of("sequential", [HISTORY, QUOTE]), "more"),
        (Skill.of(None, [HISTORY, SEND, QUOTE]), Skill.of(None, [HISTORY, QUOTE]), "more"),
        (Skill.of(None, [QUOTE, HISTORY]), Skill.of(None, [HISTORY, QUOTE]), None),
        (Skill.of(None, [SEND, HISTORY, QUOTE, SEND]), Skill.of(None, [HISTORY, QUOTE]), None),
        (Skill.of(None, [QUOTE], template="a"), Skill.of(None, [QUOTE], template="a"), "same"),
        (Skill.of(None, [QUOTE], template="a"), Skill.of(None, [QUOTE], template="b"), None),
        # Where nothing is right to call there is no call less, and nothing like it but itself.
        (Skill.of("missing_function", [QUOTE]), Skill.of("missing_function", [QUOTE]), "same"),
        (Skill.of(None, [QUOTE]), Skill.of("missing_function", [QUOTE, HISTORY]), None),
        (Skill.of("irrelevance", []), Skill.of("missing_function", []), None),
    ],
)
def test_a_skill_is_the_same_one_call_less_or_one_call_more(
    skill: Skill, failed: Skill, relation: str | None
) -> None:
    assert skill.relation_to(failed) == relation


def played(task: Task, step: int, *outcomes: bool | None) -> list[Trajectory]:
    return [
        Trajectory(
            id=f"{task.id}#{attempt}",
            task_id=task.id,
            group_id=task.id,
            attempt=attempt,
            stop_reason=StopReason.FAILED if success is None else StopReason.ANSWERED,
            reward_terms=(RewardTerm(name="success", value=success, weight=1.0),),
        )
        for attempt, success in enumerate(outcomes)
    ]


def a_run(folder: Path, data: Path, tools: ToolsConfig, fails: Callable[[Task], bool]) -> list[Task]:
    """A run whose policy met every task of `data` twice, and failed some of them the last time; which."""
    config = TrainConfig().model_copy(update={"tools": tools})
    document = config.model_dump(mode="json") | {"data": {"train": str(data / "train.jsonl")}}
    run = RunFolder.create(folder, config_yaml=yaml.safe_dump(document), manifest={})
    tasks = list(read_tasks(data / "train.jsonl"))
    early = [t for task in tasks for t in played(task, 1, False, False)]
    late = [t for task in tasks for t in played(task, 2, None, *((False, True) if fails(task) else (True,)))]
    write_trajectories(run.trajectory_stem(1), early)
    write_trajectories(run.trajectory_stem(2), late)
    return [task for task in tasks if fails(task)]


def made(out: Path, *options: str | Path, **counts: int) -> str:
    """What `gen-data --json` says of so many tasks in `out`."""
    given = [part for split, count in counts.items() for part in (f"--{split}", str(count))]
    done = mcpagent("gen-data", *options, *given, "--out", out, "--json", env=KEY)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_new(data: Path, tasks: list[Task]) -> None:
    """None is in the dataset, and nothing that its other splits are about is in them."""
    by_split = {split: list(read_tasks(data / f"{split}.jsonl")) for split in SPLITS}
    ids = {task.id for split in by_split.values() for task in split}
    assert not {task.id for task in tasks} & ids
    assert len({task.id for task in tasks}) == len(tasks)
    about = {split: {a for task in of for a in _about(task)} for split, of in by_split.items()}
    theirs = (about["validation"] | about["heldout"]) - about["train"]
    assert theirs
    for task in tasks:
        assert not _about(task) & theirs
        assert task.extra_info["split"] == "train"


def _about(task: Task) -> set[str]:
    info = task.extra_info
    return {str(value) for value in (*info.get("slots", {}).values(), info.get("about")) if value is not None}


def relation_of(task: Task) -> str:
    return task.extra_info["from_failures"]["relation"]


def test_templates_make_new_tasks_near_those_that_were_failed(tmp_path: Path) -> None:
    data, out, run = tmp_path / "data", tmp_path / "more", tmp_path / "run"
    made(data, train=40, validation=4, heldout=8)
    failed = a_run(run, data, ToolsConfig(), lambda task: task.extra_info["template"] == "channel-price")
    assert failed
    document = json.loads(made(out, "--from-failures", run, train=40))
    tasks = list(read_tasks(out / "train.jsonl"))
    assert [path.name for path in sorted(out.glob("*.jsonl"))] == ["train.jsonl"] and len(tasks) == 40
    assert (document["from_failures"]["failed"], document["from_failures"]["played"]) == (len(failed), 40)
    relations = Counter(map(relation_of, tasks))
    assert relations["same"] >= 12 and relations["less"] >= 4 and relations["more"] >= 4
    lengths = {"same": 2, "less": 1, "more": 3}
    assert all(len(task.truth.tool_sequence) == lengths[relation_of(task)] for task in tasks)
    check_new(data, tasks)
    made(tmp_path / "again", "--from-failures", run, train=40)
    assert (tmp_path / "again" / "train.jsonl").read_bytes() == (out / "train.jsonl").read_bytes()


def test_exploring_makes_new_tasks_near_those_that_it_made(tmp_path: Path) -> None:
    servers, data, out = write_mcp_json(tmp_path / "mcp.json"), tmp_path / "data", tmp_path / "more"
    made(data, "--explore", "--servers", servers, train=40, validation=5, heldout=8)
    tools = ToolsConfig(servers=str(servers))
    a_run(tmp_path / "run", data, tools, lambda task: task.extra_info["class"] == "single")
    skills = {Skill.of_task(t) for t in read_tasks(data / "train.jsonl") if t.extra_info["class"] == "single"}
    made(out, "--from-failures", tmp_path / "run", train=20)
    tasks = list(read_tasks(out / "train.jsonl"))
    assert len(tasks) >= 10
    for task in tasks:
        assert relation_of(task) in {Skill.of_task(task).relation_to(skill) for skill in skills} - {None}
    assert any(relation_of(task) == "same" for task in tasks)
    check_new(data, tasks)


def test_a_run_that_failed_nothing_and_one_that_played_nothing_are_errors(tmp_path: Path) -> None:
    data, solved, nowhere = tmp_path / "data", tmp_path / "solved", tmp_path / "x"
    made(data, train=12, validation=2, heldout=2)
    a_run(solved, data, ToolsConfig(), lambda _: False)
    with pytest.raises(UserError, match="solved each task"):
        read_failures(solved, seed=0)
    text = yaml.safe_dump({"data": {"train": str(data / "train.jsonl")}})
    fresh = RunFolder.create(tmp_path / "fresh", config_yaml=text, manifest={})
    with pytest.raises(UserError, match="no scored training episode"):
        read_failures(fresh.path, seed=0)
    for options in (
        ["--from-failures", solved],
        ["--from-failures", data],
        ["--llm", "--from-failures", solved],
    ):
        assert "error: " in refused(mcpagent("gen-data", *options, "--out", nowhere))
    assert not list(nowhere.glob("*.jsonl"))

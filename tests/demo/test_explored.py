"""The quickstart on a server of the user, cut short: its stages, what it refuses, what is kept apart."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.answer_line import right_message
from mcpagent.core.tasks import AnswerCheck, Task
from mcpagent.core.tools import ToolSpec
from mcpagent.demo.controls import run_controls
from mcpagent.demo.explored import (
    ExploredServers,
    balanced,
    disjoint,
    examples,
    shortfalls,
    task_lines,
    warnings,
    way_on,
    with_values_alone,
    within_reach,
)
from mcpagent.demo.job import QuickstartJob, open_job
from mcpagent.demo.quickstart import quickstart, run_stages
from mcpagent.errors import UserError
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.synth.explore.graph import Fact
from mcpagent.synth.explore.leaves import leaves_of
from mcpagent.synth.explore.walks import Step, Walk
from mcpagent.synth.tasks.inspect import user_text
from tests.demo.stages import noting

pytestmark = pytest.mark.system

LIBRARY = Path(__file__).parent / "servers" / "library.py"
COUNTS = {"train": 200, "validation": 8, "heldout": 72}


def servers_file(folder: Path, *, books: int, words: int = 0) -> str:
    """An mcp.json with a library of so many books, each told of in so many words."""
    path = folder / f"mcp-{books}.json"
    server = {"command": sys.executable, "args": [str(LIBRARY), str(books), str(words)]}
    path.write_text(json.dumps({"mcpServers": {"library": server}}))
    return str(path)


def cut_short(job: QuickstartJob) -> QuickstartJob:
    """The same job with a few small steps."""
    small = {"max_steps": 2, "batch_size": 2, "save_frequency": 1, "warmup_steps": 1}
    warm = job.warm.model_copy(
        update={
            "training": job.warm.training.model_copy(update=small),
            "sft": job.warm.sft.model_copy(update={"curriculum_steps": 1, "curriculum_mix": 1}),
        }
    )
    job = replace(job, warm=warm, counts=COUNTS)
    grpo = job.grpo.model_copy(
        update={
            "training": job.grpo.training.model_copy(update=small),
            "rollout": job.grpo.rollout.model_copy(update={"group_size": 2, "max_new_tokens": 4}),
            "model": job.grpo.model.model_copy(update={"name": str(job.warm_checkpoint)}),
        }
    )
    return replace(job, grpo=grpo)


class Finished(NamedTuple):
    """A quickstart, its document, and what it noted."""

    job: QuickstartJob
    document: dict[str, Any]
    notes: list[str]

    def tasks(self, split: str) -> list[Task]:
        return list(read_tasks(self.job.out / "data" / f"{split}.jsonl"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Cut short, on a library."""
    folder, notes = tmp_path_factory.mktemp("own"), list[str]()
    explored = ExploredServers(tools=ToolsConfig(servers=servers_file(folder, books=70)))
    job = cut_short(open_job(folder / "run", seed=3, stages=noting(notes), explored=explored))
    return Finished(job, run_stages(job), notes)


def test_every_stage_runs_from_an_mcp_json_to_the_report(finished: Finished) -> None:
    job, document, _ = finished
    heldout = finished.tasks("heldout")
    for side in ("warm_start", "trained"):
        assert document[side]["metrics"]["task_success_sampled"]["n"] == len(heldout)
    assert Path(document["report"]).stat().st_size > 100_000
    assert [record["step"] for record in RunFolder.open(job.out).metrics()] == [1, 2]
    assert document["tool_calls"]["servers"] is None, "a server of one's own counts no calls"
    assert document["tool_calls"]["trajectories"] > 170, "those of the demonstrations"


def test_a_finished_one_says_the_same_again(finished: Finished) -> None:
    job, document, _ = finished
    explored = ExploredServers(tools=ToolsConfig(servers=job.progress.servers))
    again = cut_short(open_job(job.out, seed=3, stages=noting([]), explored=explored))
    assert run_stages(again) == document


@pytest.mark.slow
def test_the_controls_run_on_servers_of_ones_own_and_stand_in_the_report(
    finished: Finished, tmp_path: Path
) -> None:
    job, document, _ = finished
    few = tmp_path / "run"
    shutil.copytree(job.out, few)
    heldout = (few / "data" / "heldout.jsonl").read_text().splitlines(keepends=True)[:6]
    (few / "data" / "heldout.jsonl").write_text("".join(heldout))
    explored = ExploredServers(tools=ToolsConfig(servers=job.progress.servers))
    again = run_stages(cut_short(open_job(few, seed=3, stages=noting([]), explored=explored)), run_controls)
    rows = {row["name"]: row for row in again["controls"]}
    assert rows.keys() == {"random rewards", "more demonstrations", "rejection sampling"}
    assert {row["sampled"]["n"] for row in rows.values()} == {6}
    assert all(name in Path(again["report"]).read_text(encoding="utf-8") for name in rows)
    assert again["trained"] == document["trained"], "nothing before the controls is done again"


def test_what_exploring_gave_is_said_before_anything_is_trained(finished: Finished) -> None:
    notes = finished.notes
    made = len(finished.tasks("train"))
    (told,) = [note for note in notes if note.startswith("train: ")]
    assert told.startswith(f"train: {made} tasks (") and "sequential" in told
    assert any("answers of the read-only tools" in note for note in notes)
    asked = [user_text(task) for task in finished.tasks("train")]
    shown = [note.removeprefix("such as: ") for note in notes if note.startswith("such as: ")]
    assert len(shown) == 3 and all(question in asked for question in shown)
    (forecast,) = [note for note in notes if note.startswith("this takes about ")]
    assert all(part in forecast for part in ("warm start", "GRPO", "evaluations"))
    assert notes.index(told) < notes.index(forecast) < notes.index("warm start")
    assert finished.document["said_s"] > 0
    assert any(note.startswith(f"{made} tasks for training are few") for note in notes)
    assert sum(note.startswith("not asked, ") for note in notes) == 1


def test_both_models_are_evaluated_under_the_same_limit(finished: Finished) -> None:
    """Whatever a user evaluates with: `cut_short` has another for GRPO alone."""
    stages, tools = noting([]), ToolsConfig(servers=finished.job.progress.servers)
    job = open_job(finished.job.out, seed=3, stages=stages, explored=ExploredServers(tools=tools))
    assert job.warm.rollout.max_new_tokens == job.grpo.rollout.max_new_tokens


def test_no_training_task_names_what_a_heldout_one_asks_about(finished: Finished) -> None:
    asked = {
        value
        for task in finished.tasks("heldout")
        for value in json.loads(task.extra_info["about"])[1].values()
    }
    assert len(asked) >= 5
    for task in finished.tasks("train"):
        said = " ".join([task.prompt[-1].content, *task.truth.user_turns])
        assert not set(said.replace(",", " ").replace("?", " ").replace(".", " ").split()) & asked, said


def test_what_the_network_cannot_learn_is_not_asked(finished: Finished) -> None:
    shapes, classes = set[str](), set[str]()
    for split in ("train", "validation", "heldout"):
        for each in finished.tasks(split):
            classes.add(each.extra_info["class"])
            shapes.add(each.extra_info["shape"])
            plan = json.dumps([step.params for step in each.truth.tool_sequence])
            assert len(each.truth.tool_sequence) <= 3
            assert not re.search(r"\[\d+\]|count|max|min|word\(", plan), "nobody has to count"
    assert {"single", "both", "chain", "told"} <= shapes
    assert not shapes & {"sum", "difference", "most", "counted", "total", "each", "extreme", "conditional"}
    # Nor what it is not shown: looking up what does not exist, and changing what does.
    assert not classes & {"unknown_entity", "state_change"} and classes >= {"single", "sequential"}


def test_most_tasks_need_several_calls_since_only_those_gain(finished: Finished) -> None:
    for split in ("train", "heldout"):
        calls = [len(t.truth.tool_sequence) for t in finished.tasks(split)]
        assert sum(n > 1 for n in calls) > len(calls) / 2, split
        assert 0 in calls and 1 in calls


def test_chains_are_held_out_as_well(finished: Finished) -> None:
    tasks = {s: finished.tasks(s) for s in ("train", "heldout")}
    begun = {
        split: {
            json.dumps(each.truth.tool_sequence[0].params)
            for each in members
            if each.extra_info["class"] == "sequential"
        }
        for split, members in tasks.items()
    }
    assert begun["heldout"] and begun["train"]
    assert not begun["heldout"] & begun["train"]


def test_each_task_is_demonstrated_several_times_with_other_flaws(finished: Finished) -> None:
    job = finished.job
    folder = job.out / "warm_start" / "trajectories"
    played: dict[str, list[int]] = {}
    for path in folder.glob("*.jsonl.zst"):
        for trajectory in read_trajectories(path, with_tokens=False):
            played.setdefault(trajectory.task_id, []).append(len(trajectory.tool_results))
    assert {len(calls) for calls in played.values()} == {4}
    chains = [calls for calls in played.values() if max(calls) > 1]
    assert sum(len(set(calls)) > 1 for calls in chains) > len(chains) / 3, "some stop early, some do not"


def test_another_server_or_seed_does_not_go_on_in_the_folder(finished: Finished, tmp_path: Path) -> None:
    job = finished.job
    with pytest.raises(UserError, match="was begun with --servers"):
        open_job(job.out, seed=3, stages=noting([]))
    with pytest.raises(UserError, match="was begun with --servers"):
        other = ExploredServers(tools=ToolsConfig(servers=servers_file(tmp_path, books=6)))
        open_job(job.out, seed=3, stages=noting([]), explored=other)
    with pytest.raises(UserError, match="was begun with seed 3, not 4"):
        open_job(
            job.out,
            seed=4,
            stages=noting([]),
            explored=ExploredServers(tools=ToolsConfig(servers=job.progress.servers)),
        )


def test_too_little_is_said_with_what_is_needed_and_leaves_no_tasks(tmp_path: Path) -> None:
    explored = ExploredServers(tools=ToolsConfig(servers=servers_file(tmp_path, books=2)))
    with pytest.raises(UserError) as refused:
        quickstart(tmp_path / "run", seed=0, stages=noting([]), explored=explored)
    assert "there is too little to learn from" in str(refused.value)
    assert "answers to ask about, of 30 that are needed" in str(refused.value)
    assert refused.value.remedy == (
        f"let a model write them: mcpagent gen-data --llm --servers {explored.tools.servers} "
        "--batch round-1.jsonl --out data/mine"
    )
    assert not list((tmp_path / "run").glob("data/*.jsonl"))


def test_servers_that_give_not_one_task_are_refused_with_what_works(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "cli" / "small_servers.py"
    clock = {"command": sys.executable, "args": [str(program), "time"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"time": clock}}))
    tools = ToolsConfig(servers=str(tmp_path / "mcp.json"), read_only=("time",))
    with pytest.raises(UserError, match="there is nothing to make tasks from") as refused:
        quickstart(tmp_path / "run", seed=0, stages=noting([]), explored=ExploredServers(tools=tools))
    assert refused.value.remedy is not None and "mcpagent gen-data --llm --servers" in refused.value.remedy
    assert "round-1.jsonl --out data/mine" in refused.value.remedy


def test_results_of_thousands_of_tokens_are_refused_before_training_with_what_works(tmp_path: Path) -> None:
    notes: list[str] = []
    tools = ToolsConfig(servers=servers_file(tmp_path, books=70, words=500), read_only=("library",))
    explored = ExploredServers(tools=tools)
    job = cut_short(open_job(tmp_path / "run", seed=3, stages=noting(notes), explored=explored))
    with pytest.raises(UserError, match=r"a demonstration .* has \d+ tokens") as refused:
        run_stages(job)
    assert refused.value.remedy == (
        f"mcpagent quickstart --servers {tools.servers} --read-only library --model MODEL"
    )
    assert "warm start" not in notes


def task(name: str, about: dict[str, Any], *first: dict[str, Any], calls: int = 1) -> Task:
    """A task whose first call has these arguments, and whose last one is `about`."""
    steps = [
        {
            "step": n,
            "server": "s",
            "tool": "t",
            "params": first[0] if first and n == 1 else {"x": "${step1.y}"},
        }
        for n in range(1, calls + 1)
    ]
    return Task.model_validate(
        {
            "prompt": [{"role": "user", "content": "Go."}],
            "reward_spec": {"ground_truth": {"task_id": name, "tool_sequence": steps}},
            "extra_info": {"about": json.dumps(["s.t", about])},
        }
    )


@pytest.mark.parametrize(
    ("train", "heldout", "command"),
    [
        (40, 20, "mcpagent quickstart --servers s.json --read-only s --seed-value 't=a b' --model MODEL"),
        (
            39,
            20,
            "mcpagent gen-data --llm --servers s.json --read-only s --batch round-1.jsonl --out data/mine",
        ),
        (
            40,
            19,
            "mcpagent gen-data --llm --servers s.json --read-only s --batch round-1.jsonl --out data/mine",
        ),
    ],
)
def test_too_few_tasks_for_the_small_network_are_for_a_model_to_learn_from_or_to_write(
    train: int, heldout: int, command: str
) -> None:
    tools = ToolsConfig(servers="s.json", read_only=("s",))
    explored = ExploredServers(tools=tools, seed_values={"t": ["a b"]})
    tasks = {"train": [task("a", {"x": "A"})] * train, "heldout": [task("b", {"x": "B"})] * heldout}
    assert way_on(explored, tasks).endswith(f": {command}")


def test_training_gives_way_to_what_is_held_out_and_the_rest_to_training() -> None:
    tasks = {
        "train": (
            task("a", {"x": "A", "limit": 10}, {"x": "A", "limit": 10}),
            task("through", {"x": "A", "limit": 10}, {"x": "H", "limit": 10}, calls=2),
        ),
        "heldout": (
            task("h", {"x": "H", "limit": 10}, {"x": "H", "limit": 10}),
            task("from", {"x": "H", "limit": 10}, {"x": "A", "limit": 10}, calls=2),
        ),
    }
    kept = disjoint(tasks)
    assert [t.id for t in kept["train"]] == ["a"]
    assert [t.id for t in kept["heldout"]] == ["h"], "the limit, which never changes, is no entity"


def test_tasks_of_two_calls_at_once_give_way_where_other_questions_run_out() -> None:
    alone = [task(f"a{n}", {"x": str(n)}, {"x": str(n)}) for n in range(4)]
    chains = [task(f"c{n}", {"x": str(n)}, {"x": str(n)}, calls=2) for n in range(3)]
    both = [
        each.model_copy(update={"extra_info": {**each.extra_info, "class": "parallel"}})
        for each in (task(f"b{n}", {"x": str(n)}, {"x": str(n)}, calls=2) for n in range(9))
    ]
    kept = [t.id for t in balanced([*both, *chains, *alone], least=0)]
    assert kept == ["b0", "b1", "b2", "c0", "c1", "c2", "a0", "a1", "a2", "a3"], "six of ten"
    assert balanced([*both[:3], *chains, *alone], least=0) == (*both[:3], *chains, *alone)
    assert balanced([*chains, *alone[:1]], least=0) == (*chains, *alone[:1]), "chains are few, and stay"
    assert len(balanced([*both, *chains, *alone], least=14)) == 14, "but not below what is enough"
    kept = [t.id for t in balanced([*alone, *both[:3]], least=0)]
    assert kept == ["a0", "a1", "a2", "b0", "b1", "b2"], "half of the tasks at least can gain"
    assert len(balanced([*alone, *both[:1]], least=4)) == 4


def test_a_field_with_few_values_for_many_things_is_not_asked_for() -> None:
    """There are four regions for eight stations: to guess pays. Of the heights all are different."""
    spec = ToolSpec(server="weather", name="station", description="", input_schema={})
    facts = [
        Fact(spec, {"id": n}, leaves_of({"region": "coast" if n % 2 else "plain", "height": 100 + n}))
        for n in range(8)
    ]
    is_within_reach = within_reach(facts)

    def asking(*values: str) -> Walk:
        steps = tuple(map(Step, facts[: len(values)]))
        return Walk("single", "single", steps, "it", "name", tuple({"value": value} for value in values))

    assert is_within_reach(asking("${step1.height}", "${step2.height}"))
    assert not is_within_reach(asking("${step1.region}"))
    assert not is_within_reach(asking("${step1.height}", "${step2.region}"))
    assert within_reach(facts[:7])(asking("${step1.region}")), "of seven it is no habit yet"


def test_two_things_are_answered_without_their_names() -> None:
    asked = task("a", {"x": "1"}, {"x": "1"}, calls=2)
    check = AnswerCheck(type="pairs", value={"driver 1": "L2", "driver 2": "L4"})
    truth = asked.truth.model_copy(update={"final_answer": check, "answer_line": True})
    of_two = asked.model_copy(
        update={"reward_spec": asked.reward_spec.model_copy(update={"ground_truth": truth})}
    )
    told = with_values_alone(of_two)
    assert right_message(told, {}) == "Answer: L2; L4"
    assert told.prompt[-1].content.endswith(
        'End with "Answer: " and the names, separated by "; ", in this order.'
    )
    assert with_values_alone(asked) == asked


def test_a_warning_says_that_few_tasks_can_gain() -> None:
    alone = [task(f"a{n}", {"x": str(n)}, {"x": str(n)}) for n in range(400)]
    chains = [task(f"c{n}", {"x": str(n)}, {"x": str(n)}, calls=2) for n in range(300)]
    assert warnings({"train": alone + chains}) == []
    (told,) = warnings({"train": alone + chains[:250]})
    assert told.startswith("250 of 650 tasks for training need more than one call")


@pytest.mark.parametrize(
    ("train", "heldout", "calls", "facts", "missing"),
    [
        (150, 40, 2, 30, []),
        (149, 40, 2, 30, ["149 tasks for training, of 150 that are needed"]),
        (150, 39, 2, 30, ["39 tasks held out, of 40 that are needed"]),
        (150, 40, 1, 30, ["0 of 190 tasks need more than one call, of 15% that are needed"]),
        (150, 40, 2, 29, ["29 answers to ask about, of 30 that are needed"]),
    ],
)
def test_what_is_too_little_names_how_much_is_needed(
    train: int, heldout: int, calls: int, facts: int, missing: list[str]
) -> None:
    tasks = {
        split: [task(f"{split}{n}", {"x": str(n)}, {"x": str(n)}, calls=calls) for n in range(count)]
        for split, count in (("train", train), ("heldout", heldout))
    }
    assert shortfalls(tasks, facts=facts) == missing


def test_tasks_that_name_no_class_are_counted_by_what_they_ask_for() -> None:
    """Those of the templates that ship name none."""
    tasks = list(read_tasks(Path(__file__).parents[2] / "data" / "samples" / "train.jsonl"))
    assert not any("class" in task.extra_info for task in tasks)
    (line,) = task_lines({"train": tasks})
    assert line.startswith(f"train: {len(tasks)} tasks (") and "multi step" in line
    shown = examples(tasks)
    assert len(shown) == 3 and len(set(shown)) == 3
